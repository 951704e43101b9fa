"""Hugging Face datasets, streaming: its webdataset builder over the shards, shuffled
with a buffer, in a PyTorch DataLoader. It keeps nothing.

Settings: 1, 2 or 4 workers.
"""

import os
import sys

import common
import torch_remote
from torch_remote import settings

TITLE = "Hugging Face streaming"
VENV = "remote"
DISTRIBUTIONS = ["datasets", "fsspec", "aiohttp", "torch"]
NOTE = "load_dataset(streaming=True); keeps nothing"
KEEPS = None


def load_libraries():
    os.environ.update(HF_HUB_OFFLINE="0", HF_HUB_DISABLE_TELEMETRY="1")
    import torch
    torch.set_num_threads(1)
    import datasets
    return datasets


def collate(rows):
    import torch
    return torch.utils.data.default_collate(
        [torch_remote.row(each["bin"], each["cls"]) for each in rows])


def batches(config):
    datasets = load_libraries()
    import torch
    rows = datasets.load_dataset(
        "webdataset", data_files={"train": config["shards"]}, split="train",
        streaming=True, cache_dir=config["cache"])
    rows = rows.shuffle(common.SEED, buffer_size=torch_remote.BUFFER)
    loader = torch.utils.data.DataLoader(
        rows, batch_size=config["batch"], collate_fn=collate, persistent_workers=True,
        num_workers=config["settings"]["num_workers"])
    epoch = 0
    while True:
        rows.set_epoch(epoch)
        yield from loader
        epoch += 1


if __name__ == "__main__":
    common.main(sys.modules[__name__])
