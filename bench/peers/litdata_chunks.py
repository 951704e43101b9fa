"""LitData: the JPEGs in chunks of its optimize(), read by a StreamingDataset in its
StreamingDataLoader, which knows the ranks by itself. Pillow and the table of
common.PillowTransform decode.

An epoch is each photograph 200 times (subsample), since the loader starts its
workers anew in each. Settings: 0, 1 or 2 workers.
"""

import functools
import io
import os
import pathlib
import sys

import common
import pytorch_dataloader
from pytorch_dataloader import settings

TITLE = "LitData"
VENV = "torch"
DISTRIBUTIONS = ["litdata", "torch", "pillow"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "Pillow and a NumPy table; chunks of optimize()"
FORMAT = "litdata"
EPOCH = 200.0  # times the photographs


def load_libraries():
    os.environ["LITDATA_DISABLE_VERSION_CHECK"] = "1"
    pytorch_dataloader.load_libraries()
    import litdata
    return litdata


def samples(files):
    """Of photographs, or of them in MDS shards."""
    if not pathlib.Path(files, "index.json").exists():
        return common.photographs(files)
    common.import_torchvision()
    from streaming import LocalDataset
    return LocalDataset(files)


def sample(files, index):
    row = samples(files)[index]
    if isinstance(row, dict):
        return row
    path, label = row
    return {"jpg": pathlib.Path(path).read_bytes(), "label": label}


def prepare(files, folder):
    litdata = load_libraries()
    litdata.optimize(functools.partial(sample, files), list(range(len(samples(files)))),
                     folder, chunk_bytes="16MB", num_workers=1)


def batches(config):
    litdata = load_libraries()
    import torch
    transform = common.PillowTransform(config["dtype"])
    rank, of = common.share(config)
    os.environ.update(GLOBAL_RANK=str(rank), WORLD_SIZE=str(of))

    class Photographs(litdata.StreamingDataset):
        def __getitem__(self, index):
            row = super().__getitem__(index)
            return (torch.from_numpy(transform(io.BytesIO(row["jpg"]))), row["label"])

    workers = config["settings"]["num_workers"]
    loader = litdata.StreamingDataLoader(
        Photographs(f"{config['formats']}/{FORMAT}", shuffle=True, drop_last=True,
                    seed=common.SEED, subsample=EPOCH),
        batch_size=config["batch"], num_workers=workers,
        persistent_workers=workers > 0)
    while True:
        yield from loader


if __name__ == "__main__":
    common.main(sys.modules[__name__])
