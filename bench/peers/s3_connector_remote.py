"""PyTorch's connector for S3: an S3IterableDataset of tar shards, which divides them
among the workers. It keeps nothing.

Settings: 1, 2 or 4 workers.
"""

import random
import sys

import common
import torch_remote
from torch_remote import settings

TITLE = "S3 connector for PyTorch"
VENV = "remote"
DISTRIBUTIONS = ["s3torchconnector", "torch"]
NOTE = "tar shards, read in order; keeps nothing"
KEEPS = None


def load_libraries():
    torch_remote.load_libraries()
    import s3torchconnector
    return s3torchconnector


def batches(config):
    connector = load_libraries()
    import torch

    class Shards(torch.utils.data.IterableDataset):
        epoch = 0

        def __iter__(self):
            draw = random.Random(common.SEED + self.epoch)
            self.epoch += 1
            names = list(config["names"])
            draw.shuffle(names)
            objects = connector.S3IterableDataset.from_objects(
                [f"s3://{config['bucket']}/tar/{name}" for name in names],
                region="us-east-1", endpoint=config["endpoint"], enable_sharding=True,
                reader_constructor=connector.S3ReaderConstructor.sequential(),
                s3client_config=connector.S3ClientConfig(force_path_style=True))
            return torch_remote.shuffled(
                (each for file in objects for each in torch_remote.rows_of_tar(file)),
                draw)

    yield from torch_remote.endless(Shards(), config)


if __name__ == "__main__":
    common.main(sys.modules[__name__])
