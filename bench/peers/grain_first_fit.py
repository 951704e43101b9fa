"""Grain's packing by first fit over documents.

Rows, batches and settings: as in grain_documents.py.
"""

import sys

import common
import grain_documents
from grain_documents import (  # noqa: F401
    BINS, DISTRIBUTIONS, PACKS, SHARES, VENV, WORKLOADS, settings)

TITLE = "Grain, first fit"
NOTE = f"FirstFitPackIterDataset of {BINS} bins"


def pack(grain, data, length):
    return grain.experimental.FirstFitPackIterDataset(
        data, length_struct={"tokens": length}, num_packing_bins=BINS)


def batches(config):
    return grain_documents.batches(config, pack)


if __name__ == "__main__":
    common.main(sys.modules[__name__])
