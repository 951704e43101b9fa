"""Lance: the rows in its format, tokens as lists of a fixed size, taken at random
(LanceDataset.take) in a PyTorch DataLoader.

Its own LanceDataset of PyTorch is not taken: it shuffles no rows, only batches.
Settings: 0, 1 or 2 worker processes, spawned, as it is not safe to fork.
"""

import pathlib
import sys

import common
from arrow_rows import values
from data import Parquet
from pytorch_dataloader import EndlessSampler, settings
from torch_memmap import load_libraries

TITLE = "Lance"
VENV = "huggingface"
DISTRIBUTIONS = ["pylance", "pyarrow", "torch"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "take() of random rows"
FORMAT = "rows.lance"


def prepare(files, folder):
    import lance
    import pyarrow
    from pyarrow import parquet
    for path in sorted(pathlib.Path(files).glob("*.parquet")):
        table = parquet.read_table(path)
        tokens = pyarrow.FixedSizeListArray.from_arrays(
            table["tokens"].combine_chunks().flatten(), Parquet.LENGTH)
        lance.write_dataset(table.set_column(0, "tokens", tokens), f"{folder}/rows",
                            mode="append")


class Rows:
    """Map-style, of batches of indices; opened in the process that takes them."""

    def __init__(self, folder):
        self.folder, self.rows = folder, None

    def __getitem__(self, indices):
        import lance
        import torch
        if self.rows is None:
            self.rows = lance.dataset(self.folder)
        table = self.rows.take(indices)
        return [torch.from_numpy(values(table[name])) for name in table.column_names]


def batches(config):
    torch = load_libraries()
    workers = config["settings"]["num_workers"]
    for tokens, label, _ in torch.utils.data.DataLoader(
            Rows(f"{config['formats']}/{FORMAT}/rows"), batch_size=None,
            num_workers=workers, persistent_workers=workers > 0,
            multiprocessing_context="spawn" if workers else None,
            sampler=torch.utils.data.BatchSampler(
                EndlessSampler(Parquet.COUNT, config), config["batch"], True)):
        yield tokens, label


if __name__ == "__main__":
    common.main(sys.modules[__name__])
