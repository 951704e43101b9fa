"""PyTorch DataLoader over documents: a memory map, pad_sequence, and batches of
like length: 50 batches of a random order are sorted by length at a time, as Hugging
Face's LengthGroupedSampler does it.

Settings: 0, 1 or 2 worker processes.
"""

import itertools
import sys

import common
from data import Documents
from pytorch_dataloader import settings
from torch_memmap import load_libraries

TITLE = "PyTorch DataLoader"
VENV = "torch"
DISTRIBUTIONS = ["torch", "numpy"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "pad_sequence; 50 batches sorted by length at a time"
MEGABATCH = 50


def grouped(lengths, config):
    """Endless batches of indices of like length."""
    batch = config["batch"]
    order = common.endless_order(len(lengths), config)
    while True:
        some = sorted(itertools.islice(order, MEGABATCH * batch),
                      key=lengths.__getitem__, reverse=True)
        yield from (some[at:at + batch] for at in range(0, len(some), batch))


def documents(config):
    """(map-style, what makes a batch of several, lengths)"""
    torch = load_libraries()
    import numpy
    ends, tokens = Documents.open(config["files"])
    begins = numpy.concatenate([[0], ends[:-1]])

    class Rows(torch.utils.data.Dataset):
        def __len__(self):
            return len(ends)

        def __getitem__(self, index):
            return torch.from_numpy(numpy.array(tokens[begins[index]:ends[index]]))

    def collate(rows):
        return (torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
                torch.tensor([len(row) for row in rows]))

    return Rows(), collate, (ends - begins).tolist()


def batches(config):
    torch = load_libraries()
    rows, collate, lengths = documents(config)
    workers = config["settings"]["num_workers"]
    yield from torch.utils.data.DataLoader(
        rows, batch_sampler=grouped(lengths, config), num_workers=workers,
        collate_fn=collate, persistent_workers=workers > 0)


if __name__ == "__main__":
    common.main(sys.modules[__name__])
