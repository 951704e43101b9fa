"""Grain over a memory map of tokens: a MapDataset of it, shuffled, made into batches by
threads or by worker processes.

A resume sets the iterator's state (of threads only). Settings: 1, 2 or 16 (the default)
threads in the consumer, or 1 or 2 worker processes.
"""

import sys

import common
from data import Tokens
from grain_loader import load_libraries, settings

TITLE = "Grain"
VENV = "grain"
DISTRIBUTIONS = ["grain", "numpy"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "MapDataset.source of a memory map"


def batches(config):
    import numpy
    grain = load_libraries()
    chosen = config["settings"]
    length = Tokens.LENGTH
    rank, of = common.share(config)

    class Sequences:
        def __init__(self):
            self.tokens = numpy.memmap(f"{config['files']}/tokens.bin",
                                       dtype=numpy.uint16, mode="r")

        def __len__(self):
            return (len(self.tokens) - 1) // length

        def __getitem__(self, index):
            row = self.tokens[index * length:(index + 1) * length + 1].astype(
                numpy.int64)
            return row[:-1], row[1:]

    rows = Sequences()
    behind = common.passed(len(rows), config) // config["batch"]
    data = grain.MapDataset.source(rows).seed(common.SEED).shuffle()
    data = data[rank::of].repeat().batch(config["batch"], drop_remainder=True)
    threads = chosen.get("threads", 1)
    data = data.to_iter_dataset(grain.ReadOptions(
        num_threads=threads, prefetch_buffer_size=max(2, threads)))
    if "workers" in chosen:
        if behind > 0:
            raise ValueError("a resume: of threads only")
        data = data.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(
            num_workers=chosen["workers"], per_worker_buffer_size=2))
    iterator = iter(data)
    if behind > 0:
        iterator.set_state({"next_index": behind})
    yield from iterator


if __name__ == "__main__":
    common.main(sys.modules[__name__])
