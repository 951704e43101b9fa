"""Penstock's source of Megatron's files: the samples of its GPTDataset in its order, or
in Penstock's, with all that a GPTDataset gives of a sample.

Settings: 1 or 2 worker threads of the broker.
"""

import penstock_broker
from penstock_broker import (  # noqa: F401
    DISTRIBUTIONS, SHARES, VENV, WORKLOADS, settings, versions)

TITLE = "Penstock, Megatron's files"
NOTE = "source megatron: tokens, labels, loss_mask, position_ids"


def command(config):
    return penstock_broker.command({**config, "data": "megatron"})
