"""NumPy's memory maps, as nanoGPT's get_batch and many scripts use them: rows are
taken by an array of indices, in the consumer, with no worker.

Settings: none. Divided: every consumer takes its part of each permutation.
"""

import sys

import common
import data

TITLE = "NumPy memmap"
VENV = None
DISTRIBUTIONS = ["numpy"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "x[indices] in the training process itself: nothing is made ahead"


def settings(_):
    return [{}]


def load_libraries():
    import numpy
    return numpy


def indices(count, config):
    """Endless arrays of a batch's indices."""
    numpy = load_libraries()
    rank, of = common.share(config)
    draw = numpy.random.default_rng(common.SEED)
    batch = config["batch"]
    first = common.passed(count, config)
    while True:
        order = draw.permutation(count)[rank::of]
        for at in range(first, len(order) - batch + 1, batch):
            yield order[at:at + batch]
        first = 0


def batches(config):
    numpy = load_libraries()
    files = config["files"]
    if config["data"] == "rows":
        x = numpy.load(f"{files}/x.npy", mmap_mode="r")
        y = numpy.load(f"{files}/y.npy", mmap_mode="r")
        for rows in indices(len(x), config):
            yield x[rows], y[rows]
        return
    length = data.Tokens.LENGTH
    tokens = numpy.memmap(f"{files}/tokens.bin", dtype=numpy.uint16, mode="r")
    for rows in indices((len(tokens) - 1) // length, config):
        yield tuple(
            numpy.stack([tokens[i * length + shift:(i + 1) * length + shift]
                         .astype(numpy.int64) for i in rows])
            for shift in (0, 1))


if __name__ == "__main__":
    common.main(sys.modules[__name__])
