"""Penstock on a dataset of Python objects: penstock.torch.DataLoader in each
consumer, whose ranks share the processes that make the samples.

Settings: 1 or 2 of these processes, of all consumers together.
"""

import os
import sys

import common
import torch_called
from torch_memmap import load_libraries

TITLE = "Penstock"
VENV = "torch"
PACKAGE = "client/python"  # installed into the environment
DISTRIBUTIONS = ["penstock", "torch"]
WORKLOADS = ["divided", "shared"]
SHARES = True
NOTE = "penstock.torch.DataLoader(dataset), consumers in Python"


def settings(_):
    return [{"num_workers": n} for n in (1, 2)]


def batches(config):
    load_libraries()
    import penstock.torch
    shared = config["workload"] == "shared"
    os.environ.update(PENSTOCK_RANK=str(config["rank"]),
                      PENSTOCK_WORLD_SIZE=str(config["consumers"]),
                      PENSTOCK_LOCAL_WORLD_SIZE=str(config["consumers"]))
    loader = penstock.torch.DataLoader(
        torch_called.Samples(), batch_size=config["batch"], shuffle=True,
        num_workers=config["settings"]["num_workers"], drop_last=True,
        **({"delivery": "broadcast"} if shared else {}))
    while True:
        yield from loader


if __name__ == "__main__":
    common.main(sys.modules[__name__])
