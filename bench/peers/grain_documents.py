"""Grain over documents: it makes no batches of like length, it packs. Documents of
a shuffled MapDataset come into rows of 1,024 tokens by its best-fit packing, beside
what tells them apart (segment ids and positions); 13 rows hold as many tokens as
64 documents.

Settings: 1 or 2 threads, or 1 or 2 worker processes, each with bins of its own.
"""

import sys

import common
from data import Documents
from grain_loader import load_libraries

TITLE = "Grain, packed"
VENV = "grain"
DISTRIBUTIONS = ["grain", "numpy"]
WORKLOADS = ["divided", "shared"]
SHARES = False
PACKS = True
NOTE = "BestFitPackIterDataset: rows of 1,024 tokens of several documents"
ROWS, BINS = 13, 128


def settings(consumers):
    few = [{"threads": 1}, {"threads": 2}, {"workers": 1}]
    return few + ([{"workers": 2}] if consumers <= 2 else [])


def batches(config):
    import numpy
    grain = load_libraries()
    chosen = config["settings"]
    ends, tokens = Documents.open(config["files"])
    begins = numpy.concatenate([[0], ends[:-1]])
    rank, of = common.share(config)

    def load(index):
        return {"tokens": numpy.array(tokens[begins[index]:ends[index]])}

    data = grain.MapDataset.range(rank, len(ends), of).seed(common.SEED).shuffle()
    data = data.repeat().map(load).to_iter_dataset(grain.ReadOptions(
        num_threads=chosen.get("threads", 1), prefetch_buffer_size=64))
    data = grain.experimental.BestFitPackIterDataset(
        data, length_struct={"tokens": Documents.LONGEST}, num_packing_bins=BINS)
    data = data.batch(ROWS)
    if "workers" in chosen:
        data = data.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(
            num_workers=chosen["workers"], per_worker_buffer_size=2))
    # A number for each document of the batch.
    before = numpy.arange(ROWS)[:, None] * Documents.LONGEST
    for batch in data:
        segments = batch["tokens_segment_ids"]
        lengths = numpy.bincount((segments + before)[segments > 0])
        yield batch["tokens"], lengths[lengths > 0]


if __name__ == "__main__":
    common.main(sys.modules[__name__])
