"""Grain over documents: it makes no batches of like length, it packs. Documents of
a shuffled MapDataset come into rows by its best-fit packing, beside what tells them
apart (segment ids and positions). `documents`: rows of 1,024 tokens, of which 13 hold as
many tokens as 64 documents. `packed`: rows of 4,096, in batches as Penstock's.

Settings: 1 or 2 threads, or 1 or 2 worker processes, each with bins of its own.
"""

import sys

import common
from data import DATA
from grain_loader import load_libraries

TITLE = "Grain, best fit"
VENV = "grain"
DISTRIBUTIONS = ["grain", "numpy"]
WORKLOADS = ["divided", "shared"]
SHARES = False
PACKS = True
ROWS, BINS = 13, 128
NOTE = f"BestFitPackIterDataset of {BINS} bins"


def settings(consumers):
    few = [{"threads": 1}, {"threads": 2}, {"workers": 1}]
    return few + ([{"workers": 2}] if consumers <= 2 else [])


def pack(grain, data, length):
    return grain.experimental.BestFitPackIterDataset(
        data, length_struct={"tokens": length}, num_packing_bins=BINS)


def batches(config, pack=pack):
    import numpy
    grain = load_libraries()
    chosen = config["settings"]
    what = DATA[config["data"]]
    ends, tokens = what.open(config["files"])
    begins = numpy.concatenate([[0], ends[:-1]])
    rank, of = common.share(config)
    rows = ROWS if config["data"] == "documents" else config["batch"]

    def load(index):
        return {"tokens": numpy.array(tokens[begins[index]:ends[index]])}

    data = grain.MapDataset.range(rank, len(ends), of).seed(common.SEED).shuffle()
    data = data.repeat().map(load).to_iter_dataset(grain.ReadOptions(
        num_threads=chosen.get("threads", 1), prefetch_buffer_size=64))
    data = pack(grain, data, what.LONGEST).batch(rows)
    if "workers" in chosen:
        data = data.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(
            num_workers=chosen["workers"], per_worker_buffer_size=2))
    # A number for each document of the batch.
    before = numpy.arange(rows)[:, None] * what.LONGEST
    for batch in data:
        segments = batch["tokens_segment_ids"]
        lengths = numpy.bincount((segments + before)[segments > 0])
        yield batch["tokens"], lengths[lengths > 0]


if __name__ == "__main__":
    common.main(sys.modules[__name__])
