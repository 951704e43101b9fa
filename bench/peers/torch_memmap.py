"""PyTorch DataLoader over a map-style dataset of memory maps.

Settings: 0, 1 or 2 worker processes.
"""

import itertools
import sys

import common
import data
from pytorch_dataloader import endless, settings

TITLE = "PyTorch DataLoader"
VENV = "torch"
DISTRIBUTIONS = ["torch", "numpy"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "a Dataset of memory maps, the default collate"


def load_libraries():
    import torch
    torch.set_num_threads(1)
    return torch


def dataset(config):
    import numpy
    import torch
    files = config["files"]

    class Rows(torch.utils.data.Dataset):
        def __init__(self):
            self.x = numpy.load(f"{files}/x.npy", mmap_mode="r")
            self.y = numpy.load(f"{files}/y.npy", mmap_mode="r")

        def __len__(self):
            return len(self.x)

        def __getitem__(self, index):
            return numpy.array(self.x[index]), self.y[index]

    class Tokens(torch.utils.data.Dataset):
        def __init__(self):
            self.tokens = numpy.memmap(f"{files}/tokens.bin",
                                       dtype=numpy.uint16, mode="r")

        def __len__(self):
            return (len(self.tokens) - 1) // data.Tokens.LENGTH

        def __getitem__(self, index):
            at = index * data.Tokens.LENGTH
            row = torch.from_numpy(
                self.tokens[at:at + data.Tokens.LENGTH + 1].astype(numpy.int64))
            return row[:-1], row[1:]

    return Rows() if config["data"] == "rows" else Tokens()


def batches(config):
    load_libraries()
    rows = dataset(config)
    # As its users resume: the loader has no place to begin at.
    behind = common.passed(len(rows), config) // config["batch"]
    yield from itertools.islice(endless(rows, config), behind, None)


if __name__ == "__main__":
    common.main(sys.modules[__name__])
