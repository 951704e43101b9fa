"""WebDataset: tar shards of the JPEGs, split by consumer and by worker,
shuffled in a buffer, in a WebLoader.

Settings: 0, 1 or 2 workers. Pillow and the table of common.PillowTransform
decode.
"""

import io
import os
import pathlib
import sys

import common
import pytorch_dataloader
from pytorch_dataloader import settings

TITLE = "WebDataset"
VENV = "torch"
DISTRIBUTIONS = ["webdataset", "torch", "pillow"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "Pillow and a NumPy table; 32 tar shards"
FORMAT = "webdataset"
SHARDS = 32


def prepare(photographs, folder):
    import webdataset
    files = common.photographs(photographs)
    for shard in range(min(SHARDS, len(files))):
        path = f"{folder}/{shard:06}.tar"
        with webdataset.TarWriter(path) as tar:
            for number in range(shard, len(files), SHARDS):
                name, label = files[number]
                tar.write({"__key__": f"{number:06}", "cls": label,
                           "jpg": pathlib.Path(name).read_bytes()})


def load_libraries():
    pytorch_dataloader.load_libraries()
    import webdataset
    return webdataset


def batches(config):
    webdataset = load_libraries()
    import torch
    transform = common.PillowTransform(config["dtype"])
    rank, of = common.share(config)
    # What its split_by_node reads.
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(of))
    folder = (pathlib.Path(config["files"]) if config["data"] == "webdataset"
              else pathlib.Path(config["formats"], FORMAT))
    shards = sorted(map(str, folder.glob("*.tar")))
    workers = config["settings"]["num_workers"]

    def decode(sample):
        return (torch.from_numpy(transform(io.BytesIO(sample["jpg"]))),
                int(sample["cls"]))

    def endless():
        # Its own repeat() stands behind the split.
        data = webdataset.WebDataset(
            shards, nodesplitter=webdataset.split_by_node,
            shardshuffle=len(shards), seed=common.SEED, empty_check=False)
        return (data.repeat().shuffle(256).map(decode)
                .batched(config["batch"], partial=False,
                         collation_fn=torch.utils.data.default_collate))

    yield from webdataset.WebLoader(endless(), batch_size=None,
                                    num_workers=workers)


if __name__ == "__main__":
    common.main(sys.modules[__name__])
