"""MosaicML Streaming: MDS shards of the same records in a bucket, in a StreamingDataset
with a local folder (cache_limit) and a PyTorch DataLoader. Its shuffle is of blocks of an
eighth of the records: with one of all, its cache of half has half of the shards that the
next records lie in, and it downloads a shard for every other record.

Settings: 1, 2 or 4 workers.
"""

import os
import sys

import common
import torch_remote
from torch_remote import settings

TITLE = "MosaicML Streaming"
VENV = "torch"
DISTRIBUTIONS = ["mosaicml-streaming", "boto3", "torch"]
NOTE = "MDS shards, shuffle_block_size of an eighth; cache_limit"
KEEPS = "part"
FORMAT = "mds"
BLOCKS = 8


def prepare(files, folder):
    common.import_torchvision()  # streaming does
    from streaming import MDSWriter
    columns = {"value": "bytes", "label": "int"}
    with MDSWriter(out=folder, columns=columns,
                   size_limit=torch_remote.shard_bytes(files)) as out:
        for path in torch_remote.shards(files):
            for value, label in torch_remote.records_of(path):
                out.write({"value": value, "label": label})


def load_libraries():
    import torch
    torch.set_num_threads(1)
    common.import_torchvision()
    import streaming
    return streaming


def batches(config):
    os.environ.update(S3_ENDPOINT_URL=config["endpoint"], WORLD_SIZE="1", RANK="0",
                      LOCAL_WORLD_SIZE="1", MASTER_ADDR="localhost")
    streaming = load_libraries()
    import torch
    streaming.base.util.clean_stale_shared_memory()

    class Records(streaming.StreamingDataset):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            return torch_remote.row(sample["value"], sample["label"])

    records = Records(
        remote=f"s3://{config['bucket']}/{FORMAT}", local=config["cache"],
        cache_limit=config["keep"] if config["keep"] < config["bytes"] else None,
        batch_size=config["batch"], shuffle=True, shuffle_seed=common.SEED,
        num_canonical_nodes=1, shuffle_block_size=config["records"] // BLOCKS)
    # Workers that inherit a client, and its connection, take each other's answers.
    for stream in records.streams:
        stream._downloader.clean_up()
    yield from torch_remote.endless(records, config)


if __name__ == "__main__":
    common.main(sys.modules[__name__])
