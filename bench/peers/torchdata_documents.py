"""torchdata.nodes over documents: the rows, the batches of like length and the
collate function of torch_documents.py in a ParallelMapper.

Settings: none, 1 or 2 threads or worker processes.
"""

import sys

import common
from torch_documents import documents, grouped

TITLE = "torchdata.nodes"
VENV = "torch"
DISTRIBUTIONS = ["torchdata", "torch", "numpy"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "ParallelMapper, pad_sequence; 50 batches sorted by length at a time"


def settings(consumers):
    return [{"num_workers": 0}] + [
        {"num_workers": n, "method": method} for method in ("thread", "process")
        for n in ((1, 2) if consumers <= 2 else (1,))]


def batches(config):
    rows, collate, lengths = documents(config)
    from torchdata import nodes

    def load(indices):
        return collate([rows[index] for index in indices])

    indices = nodes.IterableWrapper(grouped(lengths, config))
    chosen = config["settings"]
    yield from nodes.Loader(
        nodes.ParallelMapper(indices, load, **chosen) if chosen["num_workers"]
        else nodes.Mapper(indices, load))


if __name__ == "__main__":
    common.main(sys.modules[__name__])
