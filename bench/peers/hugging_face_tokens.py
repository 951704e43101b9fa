"""Hugging Face over blocks of tokens, as its run_clm.py trains: an Arrow table of
input_ids, all of one length, in a PyTorch DataLoader with default_data_collator. Labels
are input_ids: its models shift them.

Settings: 0, 1 or 2 worker processes; rows as lists (run_clm.py) or as tensors
(with_format).
"""

import sys

import common
from data import Tokens
from hugging_face_documents import load_libraries
from pytorch_dataloader import EndlessSampler

TITLE = "Hugging Face"
VENV = "huggingface"
DISTRIBUTIONS = ["datasets", "transformers", "torch"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "default_data_collator of an Arrow table"
FORMAT = "tokens-arrow"


def settings(consumers):
    return [{"num_workers": n, "format": form} for form in ("torch", None)
            for n in ((0, 1, 2) if consumers <= 2 else (0, 1))]


def prepare(files, folder):
    datasets, *_ = load_libraries()
    import numpy
    import pyarrow
    tokens = numpy.fromfile(f"{files}/tokens.bin", dtype=numpy.uint16)
    count = (len(tokens) - 1) // Tokens.LENGTH
    rows = pyarrow.ListArray.from_arrays(
        numpy.arange(count + 1, dtype=numpy.int32) * Tokens.LENGTH,
        tokens[:count * Tokens.LENGTH].astype(numpy.int32))
    datasets.Dataset(pyarrow.table({"input_ids": rows})).save_to_disk(folder)


def batches(config):
    datasets, torch, transformers = load_libraries()
    rows = datasets.load_from_disk(f"{config['formats']}/{FORMAT}")
    chosen = config["settings"]
    workers = chosen["num_workers"]

    def collate(features):
        batch = transformers.default_data_collator(features)
        return batch["input_ids"], batch["input_ids"].clone()

    yield from torch.utils.data.DataLoader(
        rows.with_format(chosen["format"]), batch_size=config["batch"],
        sampler=EndlessSampler(len(rows), config), num_workers=workers,
        collate_fn=collate, persistent_workers=workers > 0)


if __name__ == "__main__":
    common.main(sys.modules[__name__])
