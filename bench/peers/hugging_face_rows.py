"""Hugging Face datasets over Parquet: converted to Arrow once, rows taken by a list of
indices; or streamed from the files through a shuffle buffer.

Settings: indices in the consumer or in its DataLoader with 1 or 2 workers; streamed
likewise.
"""

import pathlib
import sys

import common
import hugging_face
import numpy_memmap
from pytorch_dataloader import EndlessSampler

TITLE = "Hugging Face datasets"
VENV = "huggingface"
DISTRIBUTIONS = ["datasets", "pyarrow", "torch"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "dataset[indices] of its Arrow table, or an IterableDataset with a shuffle buffer"
BUFFER = 10_000


def settings(consumers):
    return [{"way": way, **each} for way in ("indices", "stream")
            for each in hugging_face.settings(consumers)]


def batches(config):
    datasets = hugging_face.load_libraries()
    import torch
    from datasets.distributed import split_dataset_by_node
    chosen, batch = config["settings"], config["batch"]
    workers = chosen["num_workers"]
    files = sorted(map(str, pathlib.Path(config["files"]).glob("*.parquet")))
    stream = chosen["way"] == "stream"
    rows = datasets.load_dataset(
        "parquet", data_files=files, split="train", streaming=stream,
        cache_dir=f"{config['formats']}/huggingface").with_format("numpy")
    if stream:
        rank, of = common.share(config)
        rows = split_dataset_by_node(
            rows.shuffle(common.SEED, buffer_size=BUFFER).repeat(None), rank, of)
        taken = torch.utils.data.DataLoader(rows.batch(batch, drop_last_batch=True),
                                            num_workers=workers, batch_size=None)
    elif workers == 0:
        taken = (rows[each] for each in numpy_memmap.indices(len(rows), config))
    else:
        taken = torch.utils.data.DataLoader(
            rows, num_workers=workers, persistent_workers=True, batch_size=None,
            sampler=torch.utils.data.BatchSampler(
                EndlessSampler(len(rows), config), batch, True))
    for each in taken:
        yield each["tokens"], each["label"]


if __name__ == "__main__":
    common.main(sys.modules[__name__])
