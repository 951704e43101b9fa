"""Ray Data: a cluster of this host, whose tasks decode with common.PillowTransform, a
batch at a time; batches come through its object store.

Divided: one dataset, an iterator of streaming_split for each consumer, which it feeds as
they ask. Shared: a dataset of each consumer, as there is no iterator for all. Rows are
an epoch of the photographs 200 times. Settings: batches prefetched.
"""

import itertools
import os
import signal
import sys

import common
from ray_data import connect, load_libraries

TITLE = "Ray Data"
VENV = "ray"
DISTRIBUTIONS = ["ray", "pillow", "numpy"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "streaming_split; Pillow and a NumPy table"
STORE_BYTES = 2 << 30
EPOCHS = 200
SPACE = "penstock"  # of names of actors


def settings(_):
    return [{"prefetch": 1}, {"prefetch": 4}]


def dataset(ray, config):
    import numpy
    files = common.photographs(config["photographs"])
    order = numpy.fromiter(itertools.islice(
        common.endless_order(len(files), {**config, "rank": 0, "consumers": 1}),
        EPOCHS * len(files)), numpy.int32)

    def decoded(rows):
        transform = common.PillowTransform(config["dtype"])
        images, labels = zip(*((transform(files[i][0]), files[i][1])
                               for i in order[rows["id"]]))
        return {"image": numpy.stack(images), "label": numpy.array(labels)}

    return ray.data.range(
        len(order), override_num_blocks=len(order) // config["batch"]).map_batches(
            decoded, batch_size=None)  # one operator with range: two would wait


class Iterators:
    """An actor: the iterators of a dataset that is divided."""

    def __init__(self, config):
        ray = load_libraries()
        ray.data.DataContext.get_current().enable_progress_bars = False
        self.iterators = dataset(ray, config).streaming_split(
            config["consumers"], equal=True)

    def of(self, rank):
        return self.iterators[rank]


def serve(config, ready):
    os.environ["PYTHONPATH"] = os.path.dirname(__file__)
    ray = load_libraries()
    connect(ray, namespace=SPACE, object_store_memory=STORE_BYTES, include_dashboard=False)
    divided = None
    if config["workload"] == "divided":
        divided = ray.remote(num_cpus=0)(Iterators).options(name="iterators").remote(
            config)
        ray.get(divided.of.remote(0))
    ready(address=ray.get_runtime_context().gcs_address)
    signal.pause()


def batches(config):
    ray = load_libraries()
    connect(ray, namespace=SPACE, address=config["server"]["address"])
    data = (ray.get(ray.get_actor("iterators").of.remote(config["rank"]))
            if config["workload"] == "divided" else dataset(ray, config))
    while True:
        for batch in data.iter_batches(
                batch_size=config["batch"], drop_last=True,
                prefetch_batches=config["settings"]["prefetch"]):
            yield batch["image"], batch["label"]


if __name__ == "__main__":
    common.main(sys.modules[__name__])
