"""No loader at all: a Python loop over Pillow, batch by batch, in the
consumer.

Question: that of a lower bound: what does one get without any library? It
needs no PyPI, so that ctest can run bench/peers.py with it.
"""

import sys

import common

TITLE = "plain Python loop"
VENV = None
DISTRIBUTIONS = ["Pillow", "numpy"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "Debian's Pillow, no workers, nothing made ahead"


def settings(consumers):
    return [{}]


def load_libraries():
    common.PillowTransform()


def batches(config):
    import numpy
    transform = common.PillowTransform(config["dtype"])
    files = common.photographs(config["photographs"])
    order = common.endless_order(len(files), config)
    while True:
        rows = [files[next(order)] for _ in range(config["batch"])]
        yield (numpy.stack([transform(path) for path, _ in rows]),
               numpy.array([label for _, label in rows]))


if __name__ == "__main__":
    common.main(sys.modules[__name__])
