"""PyTorch DataLoader over a dataset of Python objects: 50,000 dictionaries, each
sample an augmentation with NumPy (a random shift, noise, a softmax).

Settings: 0, 1 or 2 worker processes. Each rank has its own workers, and with them
copies of the objects' pages: reference counts are written into them.
"""

import sys

import common
import data
from pytorch_dataloader import endless, settings
from torch_memmap import load_libraries

TITLE = "PyTorch DataLoader"
VENV = "torch"
DISTRIBUTIONS = ["torch", "numpy"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "the dataset's objects once in each rank and worker"


class Samples:
    """Map-style, of (float32 [64], int64)."""

    def __init__(self):
        self.rows = [{"id": i, "tags": [f"tag {i} {j}" for j in range(8)],
                      "label": i % 10, "seed": i}
                     for i in range(data.Python.COUNT)]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        import numpy
        row = self.rows[index]
        value = numpy.sin(numpy.arange(64, dtype=numpy.float32) * row["id"])
        value = numpy.roll(value, numpy.random.randint(64))
        value += numpy.random.standard_normal(64).astype(numpy.float32) * 0.01
        return value, row["label"] + 0 * len(row["tags"])


def batches(config):
    load_libraries()
    yield from endless(Samples(), config)


if __name__ == "__main__":
    common.main(sys.modules[__name__])
