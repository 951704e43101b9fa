"""pyarrow in a PyTorch DataLoader: an IterableDataset of the row groups of a worker,
in a random order; the rows of 4 at a time are shuffled together, as Penstock does it
here.

Settings: 0, 1 or 2 worker processes.
"""

import itertools
import pathlib
import sys

import common
from data import Parquet
from pytorch_dataloader import settings
from torch_memmap import load_libraries

TITLE = "pyarrow, PyTorch DataLoader"
VENV = "huggingface"
DISTRIBUTIONS = ["pyarrow", "torch", "numpy"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = f"rows of {Parquet.WINDOW} row groups shuffled together"


def values(column):
    """[n], or [n, length] of lists of one length."""
    import pyarrow
    column = column.combine_chunks()
    if isinstance(column, (pyarrow.ListArray, pyarrow.FixedSizeListArray)):
        return column.flatten().to_numpy().reshape(len(column), -1)
    return column.to_numpy()


def batches(config):
    torch = load_libraries()
    import numpy
    import pyarrow
    from pyarrow import parquet
    pyarrow.set_cpu_count(1)
    rank, of = common.share(config)

    class Rows(torch.utils.data.IterableDataset):
        def __iter__(self):
            mine, parts = rank, of
            if worker := torch.utils.data.get_worker_info():
                mine = rank * worker.num_workers + worker.id
                parts = of * worker.num_workers
            files = [parquet.ParquetFile(path) for path in
                     sorted(pathlib.Path(config["files"]).glob("*.parquet"))]
            groups = [(file, group) for file in files
                      for group in range(file.num_row_groups)][mine::parts]
            draw = numpy.random.default_rng(common.SEED + mine)
            order = itertools.chain.from_iterable(
                draw.permutation(len(groups)) for _ in itertools.count())
            while True:
                window = pyarrow.concat_tables(
                    groups[at][0].read_row_group(groups[at][1], use_threads=False)
                    for at in itertools.islice(order, Parquet.WINDOW))
                columns = [values(window[name]) for name in window.column_names]
                rows = draw.permutation(len(window))
                for at in range(0, len(rows) - config["batch"] + 1, config["batch"]):
                    taken = rows[at:at + config["batch"]]
                    yield [torch.from_numpy(column[taken]) for column in columns]

    workers = config["settings"]["num_workers"]
    for tokens, label, _ in torch.utils.data.DataLoader(
            Rows(), batch_size=None, num_workers=workers):
        yield tokens, label


if __name__ == "__main__":
    common.main(sys.modules[__name__])
