"""PyTorch DataLoader with the transform written by hand for this machine:
Pillow crops while it resizes and a NumPy table normalises
(common.PillowTransform).

Why in addition to the usual one: a user who keeps the loader and optimises the
transform gets this. So Penstock is not compared with torchvision's cost alone.
Settings as there.
"""

import random
import sys

import common
import pytorch_dataloader
from pytorch_dataloader import WORKLOADS, SHARES, load_libraries, settings

TITLE = "PyTorch DataLoader, tuned"
VENV = "torch"
DISTRIBUTIONS = ["torch", "pillow", "numpy"]
NOTE = "Pillow and a NumPy table instead of torchvision"


def tensor_transform(config):
    import torch
    transform = common.PillowTransform(config["dtype"])
    return lambda file: torch.from_numpy(transform(file, random))


def batches(config):
    yield from pytorch_dataloader.loader(config, tensor_transform(config))


if __name__ == "__main__":
    common.main(sys.modules[__name__])
