"""PyTorch DataLoader, tuned, and half of the decoded rows kept by its user: in a file that all
workers of all consumers map, made before they begin.

Settings as of pytorch_dataloader.py.
"""

import pathlib
import signal
import sys

import common
import pytorch_dataloader
import torch_centre
from data import DATA
from torch_centre import (  # noqa: F401
    DISTRIBUTIONS, SHARES, VENV, WORKLOADS, load_libraries, settings)

TITLE = "PyTorch DataLoader, half kept"
NOTE = "Pillow and a NumPy table; half of the decoded rows in a file that all map"


def rows(config, mode):
    import numpy
    return numpy.memmap(pathlib.Path(config["folder"], "kept"), numpy.uint8, mode, shape=(
        DATA[config["data"]].kept(config), common.SIZE, common.SIZE, 3))


def serve(config, ready):
    files = common.photographs(config["photographs"])
    for row, (path, _) in zip(rows(config, "w+"), files):
        row[...] = torch_centre.decoded(path)
    ready()
    signal.pause()


def batches(config):
    kept = {path: row for row, (path, _) in
            zip(rows(config, "r"), common.photographs(config["photographs"]))}
    data = torch_centre.dataset(config, lambda path: (
        kept[path] if path in kept else torch_centre.decoded(path)))
    yield from pytorch_dataloader.endless(data, config)


if __name__ == "__main__":
    common.main(sys.modules[__name__])
