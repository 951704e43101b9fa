"""Hugging Face datasets: the lines converted to Arrow once, rows taken by a list
of indices (`dataset[indices]`, its fast way), numbers as NumPy.

Settings: none, or its DataLoader with 1 or 2 workers.
"""

import os
import sys

import common
import numpy_memmap
from pytorch_dataloader import EndlessSampler

TITLE = "Hugging Face datasets"
VENV = "huggingface"  # streaming wants an older huggingface-hub
DISTRIBUTIONS = ["datasets", "pyarrow"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "dataset[indices] of its Arrow table; text stays a str"


def settings(consumers):
    return [{"num_workers": n} for n in ((0, 1, 2) if consumers <= 2 else (0, 1))]


def load_libraries():
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1")
    import datasets
    import torch
    torch.set_num_threads(1)
    return datasets


def batches(config):
    datasets = load_libraries()
    import numpy
    import torch
    files = config["files"]
    rows = datasets.load_dataset(
        "json", data_files=f"{files}/lines.jsonl", split="train",
        cache_dir=f"{config['formats']}/huggingface").with_format("numpy", dtype=numpy.float64)
    workers = config["settings"]["num_workers"]
    if workers == 0:
        taken = (rows[each] for each in numpy_memmap.indices(len(rows), config))
    else:
        taken = torch.utils.data.DataLoader(
            rows, num_workers=workers, persistent_workers=True, batch_size=None,
            sampler=torch.utils.data.BatchSampler(
                EndlessSampler(len(rows), config), config["batch"], True))
    for batch in taken:
        yield batch["score"], batch["label"]


if __name__ == "__main__":
    common.main(sys.modules[__name__])
