"""Penstock with packing by `split`: documents are cut where a sequence is full.

Settings: 1 or 2 worker threads of the broker.
"""

import penstock_broker
from penstock_broker import (  # noqa: F401
    DISTRIBUTIONS, SHARES, VENV, WORKLOADS, settings, versions)

TITLE = "Penstock, split"
NOTE = "pack: {method: split}"


def command(config):
    return penstock_broker.command({**config, "data": "packed-split"})
