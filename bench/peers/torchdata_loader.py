"""torchdata's StatefulDataLoader, with the transform of pytorch_tuned.py: its workers
send their state with each batch, which nobody asks for here.

Settings as of pytorch_dataloader.py.
"""

import sys

import common
import pytorch_dataloader
from pytorch_dataloader import WORKLOADS, SHARES, load_libraries, settings
from pytorch_tuned import tensor_transform

TITLE = "torchdata StatefulDataLoader"
VENV = "torch"
DISTRIBUTIONS = ["torchdata", "torch", "pillow", "numpy"]
NOTE = "Pillow and a NumPy table"


def batches(config):
    from torchdata.stateful_dataloader import StatefulDataLoader
    data = pytorch_dataloader.dataset(config, tensor_transform(config))
    yield from pytorch_dataloader.endless(data, config, StatefulDataLoader)


if __name__ == "__main__":
    common.main(sys.modules[__name__])
