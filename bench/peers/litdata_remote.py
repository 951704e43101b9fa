"""LitData: chunks of optimize() of the same records in a bucket, in a StreamingDataset
with a cache folder (max_cache_size) and its StreamingDataLoader.

Settings: 1, 2 or 4 workers.
"""

import os
import sys

import common
import torch_remote
from torch_remote import settings

TITLE = "LitData"
VENV = "torch"
DISTRIBUTIONS = ["litdata", "boto3", "obstore", "torch"]
NOTE = "chunks of optimize(); max_cache_size"
KEEPS = "part"
FORMAT = "litdata"


def load_libraries():
    os.environ["LITDATA_DISABLE_VERSION_CHECK"] = "1"
    import torch
    torch.set_num_threads(1)
    import litdata
    # Its client has no option for a store without TLS.
    litdata.streaming.downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True
    return litdata


def sample(path):
    for value, label in torch_remote.records_of(path):
        yield {"value": value, "label": label}


def prepare(files, folder):
    litdata = load_libraries()
    litdata.optimize(sample, torch_remote.shards(files), folder,
                     chunk_bytes=torch_remote.shard_bytes(files), num_workers=1)


def batches(config):
    litdata = load_libraries()

    class Records(litdata.StreamingDataset):
        def __getitem__(self, index):
            found = super().__getitem__(index)
            return torch_remote.row(found["value"], found["label"])

    workers = config["settings"]["num_workers"]
    # Ten times the records is all, as it counts what it downloads ahead.
    room = config["keep"] if config["keep"] < config["bytes"] else 10 * config["bytes"]
    loader = litdata.StreamingDataLoader(
        Records(f"s3://{config['bucket']}/{FORMAT}", cache_dir=config["cache"],
                shuffle=True, seed=common.SEED, drop_last=False, max_cache_size=room,
                storage_options={"endpoint_url": config["endpoint"],
                                 "region_name": "us-east-1"}),
        batch_size=config["batch"], num_workers=workers, persistent_workers=True)
    while True:
        yield from loader


if __name__ == "__main__":
    common.main(sys.modules[__name__])
