"""FFCV on small rows: its own .beton, made once from the same arrays.

Settings: 1 or 2 threads. QUASI_RANDOM is its order for files larger than memory;
RANDOM is used here.
"""

import sys

import common

TITLE = "FFCV"
VENV = "ffcv"
DISTRIBUTIONS = ["ffcv", "torch", "numba"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "NDArrayField and IntField; the format is converted first"
FORMAT = "ffcv-rows"


def settings(_):
    return [{"num_workers": n} for n in (1, 2)]


def load_libraries():
    import torch
    torch.set_num_threads(1)
    import ffcv
    return ffcv


def prepare(files, folder):
    import numpy
    from ffcv.fields import IntField, NDArrayField
    from ffcv.writer import DatasetWriter
    x, y = (numpy.load(f"{files}/{name}.npy") for name in ("x", "y"))

    class Rows:
        def __len__(self):
            return len(x)

        def __getitem__(self, index):
            return x[index], int(y[index])

    DatasetWriter(f"{folder}/rows.beton", {
        "x": NDArrayField(shape=x.shape[1:], dtype=x.dtype),
        "y": IntField()}, num_workers=2).from_indexed_dataset(Rows())


def batches(config):
    load_libraries()
    import pathlib
    from ffcv.loader import Loader, OrderOption
    rank, of = common.share(config)
    beton = pathlib.Path(config["formats"], FORMAT, "rows.beton")
    import numpy
    count = len(numpy.load(f"{config['files']}/y.npy", mmap_mode="r"))
    loader = Loader(str(beton), batch_size=config["batch"], drop_last=True,
                    num_workers=config["settings"]["num_workers"],
                    order=OrderOption.RANDOM, seed=common.SEED,
                    indices=list(range(rank, count, of)))
    while True:
        for x, y in loader:
            yield x, y


if __name__ == "__main__":
    common.main(sys.modules[__name__])
