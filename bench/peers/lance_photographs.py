"""Lance: the JPEGs in its format, taken at random, a batch at a time
(LanceDataset.take), in a PyTorch DataLoader. Pillow and the table of
common.PillowTransform decode.

Settings: 0, 1 or 2 worker processes, spawned, as it is not safe to fork.
"""

import io
import pathlib
import sys

import common
from pytorch_dataloader import EndlessSampler, settings
from torch_memmap import load_libraries

TITLE = "Lance"
VENV = "huggingface"
DISTRIBUTIONS = ["pylance", "pyarrow", "torch", "pillow"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "take() of random rows; Pillow and a NumPy table"
FORMAT = "lance"


def prepare(files, folder):
    import lance
    import pyarrow
    paths, labels = zip(*common.photographs(files))
    jpegs = [pathlib.Path(path).read_bytes() for path in paths]
    lance.write_dataset(
        pyarrow.table({"jpg": pyarrow.array(jpegs, pyarrow.large_binary()),
                       "label": pyarrow.array(labels, pyarrow.int64())}),
        f"{folder}/rows")


class Photographs:
    """Map-style, of batches of indices; opened in the process that takes them."""

    def __init__(self, config):
        self.folder = f"{config['formats']}/{FORMAT}/rows"
        self.dtype, self.rows = config["dtype"], None

    def __getitem__(self, indices):
        import lance
        import numpy
        import torch
        if self.rows is None:
            self.rows = lance.dataset(self.folder)
            self.transform = common.PillowTransform(self.dtype)
        table = self.rows.take(indices)
        images = [self.transform(io.BytesIO(jpg.as_py())) for jpg in table["jpg"]]
        return (torch.from_numpy(numpy.stack(images)),
                torch.tensor(table["label"].to_pylist()))


def batches(config):
    torch = load_libraries()
    workers = config["settings"]["num_workers"]
    count = len(common.photographs(config["photographs"]))
    yield from torch.utils.data.DataLoader(
        Photographs(config), batch_size=None, num_workers=workers,
        persistent_workers=workers > 0,
        multiprocessing_context="spawn" if workers else None,
        sampler=torch.utils.data.BatchSampler(
            EndlessSampler(count, config), config["batch"], True))


if __name__ == "__main__":
    common.main(sys.modules[__name__])
