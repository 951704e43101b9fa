"""Grain, the loader of JAX: a MapDataset of a share of the files, shuffled,
made into batches by threads or by worker processes. Grain has no decoder; its
users bring one: Pillow and the table of common.PillowTransform.

Settings: 1, 2 or 16 (the default) threads in the consumer, or 1 or 2 worker
processes.
"""

import sys

import common
from data import DATA

TITLE = "Grain"
VENV = "grain"
DISTRIBUTIONS = ["grain", "pillow", "numpy"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "Pillow and a NumPy table"


def settings(consumers):
    few = [{"threads": 1}, {"threads": 2}, {"workers": 1}]
    return few + ([{"threads": 16}, {"workers": 2}] if consumers <= 2 else [])


def load_libraries():
    import grain
    return grain


def batches(config):
    import random
    grain = load_libraries()
    chosen = config["settings"]
    transform = common.PillowTransform(config["dtype"])
    rank, of = common.share(config)

    def load(file, generator):
        path, label = file
        draw = random.Random(int(generator.integers(1 << 62)))
        return transform(path, draw), label

    weights, parts = zip(*DATA[config["data"]].parts(config, rank, of))
    data = grain.MapDataset.mix(
        [grain.MapDataset.source(files).seed(common.SEED + rank).shuffle().repeat()
         for files in parts], weights)
    data = data.random_map(load).batch(config["batch"], drop_remainder=True)
    threads = chosen.get("threads", 1)
    data = data.to_iter_dataset(grain.ReadOptions(
        num_threads=threads, prefetch_buffer_size=max(2, threads)))
    if "workers" in chosen:
        data = data.mp_prefetch(grain.multiprocessing.MultiprocessingOptions(
            num_workers=chosen["workers"], per_worker_buffer_size=2))
    yield from data


if __name__ == "__main__":
    common.main(sys.modules[__name__])
