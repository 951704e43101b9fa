"""Penstock with jobs beside each other: every consumer has the whole dataset in an order of
its own (delivery independent); the cache is one for all.

Settings: 1 or 2 worker threads of the broker.
"""

import penstock_broker
from penstock_broker import DISTRIBUTIONS, VENV, settings, versions  # noqa: F401

TITLE = "Penstock, an order of each"
WORKLOADS = ["shared"]
SHARES = False
NOTE = "delivery: independent; one cache of half of the decoded rows"


def command(config):
    return penstock_broker.command(config, "independent")
