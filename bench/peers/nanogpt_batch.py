"""nanoGPT's get_batch, as published: windows at random places of a memory map, with
replacement, in the training process. It opens the map for each batch, to free what it
has touched.

Settings: none. Every consumer draws from the whole, with a seed of its own.
"""

import sys

import common
import data
from torch_memmap import load_libraries

TITLE = "nanoGPT's get_batch"
VENV = "torch"
DISTRIBUTIONS = ["torch", "numpy"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "random windows in the training process itself: no epochs, no workers"


def settings(_):
    return [{}]


def batches(config):
    torch = load_libraries()
    import numpy as np
    torch.manual_seed(1337 + config["rank"])
    block_size, batch_size = data.Tokens.LENGTH, config["batch"]
    while True:
        tokens = np.memmap(f"{config['files']}/tokens.bin", dtype=np.uint16, mode="r")
        ix = torch.randint(len(tokens) - block_size, (batch_size,))
        x = torch.stack([torch.from_numpy(
            (tokens[i:i + block_size]).astype(np.int64)) for i in ix])
        y = torch.stack([torch.from_numpy(
            (tokens[i + 1:i + 1 + block_size]).astype(np.int64)) for i in ix])
        yield x, y


if __name__ == "__main__":
    common.main(sys.modules[__name__])
