"""PyTorch DataLoader over lines of JSON: offsets found once, then seek, readline
and json.loads, as scripts without a library do.

Settings: 0, 1 or 2 worker processes.
"""

import json
import sys

import common
from pytorch_dataloader import endless, settings
from torch_memmap import load_libraries

TITLE = "PyTorch DataLoader"
VENV = "torch"
DISTRIBUTIONS = ["torch"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "json.loads of each line; text stays a str"


def batches(config):
    torch = load_libraries()
    path = f"{config['files']}/lines.jsonl"

    class Lines(torch.utils.data.Dataset):
        def __init__(self):
            self.file = None
            with open(path, "rb") as file:
                self.offsets = [0]
                for line in file:
                    self.offsets.append(self.offsets[-1] + len(line))

        def __len__(self):
            return len(self.offsets) - 1

        def __getitem__(self, index):
            if self.file is None:
                self.file = open(path, "rb")
            self.file.seek(self.offsets[index])
            row = json.loads(self.file.readline())
            return row["score"], row["text"], row["label"]

    for score, _, label in endless(Lines(), config):
        yield score, label


if __name__ == "__main__":
    common.main(sys.modules[__name__])
