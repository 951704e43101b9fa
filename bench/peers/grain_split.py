"""Grain's packing by concatenating all documents and splitting the whole.

Rows, batches and settings: as in grain_documents.py.
"""

import sys

import common
import grain_documents
from grain_documents import (  # noqa: F401
    DISTRIBUTIONS, PACKS, SHARES, VENV, WORKLOADS, settings)

TITLE = "Grain, concat then split"
NOTE = "ConcatThenSplitIterDataset: documents are cut where a row is full"


def pack(grain, data, length):
    return grain.experimental.ConcatThenSplitIterDataset(
        data, length_struct={"tokens": length})


def batches(config):
    return grain_documents.batches(config, pack)


if __name__ == "__main__":
    common.main(sys.modules[__name__])
