"""Hugging Face over documents, as its Trainer does: an Arrow table of input_ids,
LengthGroupedSampler (group_by_length) and DataCollatorWithPadding in a PyTorch
DataLoader.

Settings: 0, 1 or 2 worker processes.
"""

import os
import sys

import common
from data import Documents
from pytorch_dataloader import settings
from torch_documents import MEGABATCH

TITLE = "Hugging Face"
VENV = "huggingface"
DISTRIBUTIONS = ["datasets", "transformers", "torch"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = f"group_by_length, DataCollatorWithPadding; sorts {MEGABATCH} batches at a time"
FORMAT = "documents-arrow"


def load_libraries():
    os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1",
                      TOKENIZERS_PARALLELISM="false")
    import datasets
    import torch
    import transformers
    torch.set_num_threads(1)
    return datasets, torch, transformers


def prepare(files, folder):
    datasets, *_ = load_libraries()
    import numpy
    import pyarrow
    ends, tokens = Documents.open(files)
    offsets = pyarrow.array(numpy.concatenate([[0], ends]).astype(numpy.int32))
    rows = pyarrow.ListArray.from_arrays(offsets, pyarrow.array(numpy.asarray(tokens)))
    datasets.Dataset(pyarrow.table({"input_ids": rows})).save_to_disk(folder)


def collator(transformers):
    """Of a tokenizer, which is asked only how to pad."""
    import tokenizers
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[PAD]": 0}, "[PAD]"))
    return transformers.DataCollatorWithPadding(transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="[PAD]"))


def batches(config):
    datasets, torch, transformers = load_libraries()
    from transformers.trainer_pt_utils import LengthGroupedSampler
    rank, of = common.share(config)
    rows = datasets.load_from_disk(f"{config['formats']}/{FORMAT}").shard(of, rank)
    lengths = [len(row) for row in rows.data.column("input_ids")]
    sampler = LengthGroupedSampler(config["batch"], lengths=lengths,
                                   generator=torch.Generator().manual_seed(common.SEED))
    workers = config["settings"]["num_workers"]
    loader = torch.utils.data.DataLoader(
        rows, batch_size=config["batch"], sampler=sampler, drop_last=True,
        num_workers=workers, collate_fn=collator(transformers),
        persistent_workers=workers > 0)
    while True:
        for batch in loader:
            yield batch["input_ids"], batch["attention_mask"].sum(1)


if __name__ == "__main__":
    common.main(sys.modules[__name__])
