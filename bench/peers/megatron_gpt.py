"""megatron-core's GPTDataset, made by its BlendedMegatronDatasetBuilder, with Megatron's
sampler for --dataloader-type single in a PyTorch DataLoader. Rank 0 builds the indices
and keeps them in a folder, the others wait and map them; config["cache"]: another
folder, and "" for none, where each builds them for itself.

A resume is consumed_samples. Settings: 0, 1 or 2 (Megatron's default) worker processes;
no attention mask (--no-create-attention-mask-in-dataloader).
"""

import collections
import datetime
import sys

import common
from data import Megatron
from pytorch_dataloader import settings

TITLE = "megatron-core"
VENV = "megatron"
DISTRIBUTIONS = ["megatron-core", "torch", "numpy"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "GPTDataset: tokens, labels, loss_mask, position_ids"


def serve(_, ready):
    common.meet(ready)


def load_libraries():
    import torch
    torch.set_num_threads(1)
    from megatron.core.datasets import (  # noqa: F401
        blended_megatron_dataset_builder, gpt_dataset, helpers)
    return torch


class Tokenizer:
    """As much of one as GPTDataset asks."""
    vocab_size = 50257
    eod = eos = 50256
    unique_identifiers = collections.OrderedDict(vocab_size=vocab_size)


class PretrainingSampler:
    """megatron.training's, which PyPI does not have: a rank's part of each global
    micro-batch, of which every rank goes through all."""

    def __init__(self, samples, config, rank, of):
        self.samples = samples
        self.batch, self.rank, self.of = config["batch"], rank, of
        self.consumed = of * common.passed(samples, config)

    def __iter__(self):
        batch = []
        for index in range(self.consumed, self.samples):
            batch.append(index)
            if len(batch) == self.batch * self.of:
                yield batch[self.rank * self.batch:(self.rank + 1) * self.batch]
                batch = []
        self.consumed = 0


def dataset(config, rank, of, cache):
    torch = load_libraries()
    from megatron.core.datasets.blended_megatron_dataset_builder import (
        BlendedMegatronDatasetBuilder)
    from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig
    if cache != "":  # without it, one process knows of no other
        store = (torch.distributed.HashStore() if of == 1 else
                 torch.distributed.TCPStore("localhost", config["server"]["port"],
                                            of, rank == 0))
        torch.distributed.init_process_group(
            "gloo", rank=rank, world_size=of, store=store,
            timeout=datetime.timedelta(hours=1))
    options = GPTDatasetConfig(
        random_seed=common.SEED, sequence_length=Megatron.LENGTH,
        blend_per_split=[([f"{config['files']}/tokens"], None), None, None],
        path_to_cache=cache, tokenizer=Tokenizer(), reset_position_ids=False,
        reset_attention_mask=False, eod_mask_loss=False, create_attention_mask=False)
    return BlendedMegatronDatasetBuilder(
        GPTDataset, [Megatron.records(config), None, None], lambda: True,
        options).build()[0]


def batches(config):
    torch = load_libraries()
    rank, of = common.share(config)
    cache = config.get("cache")
    if cache is None:
        # Built once, before what is measured.
        cache = f"{config['formats']}/megatron-{'all' if of > 1 else config['rank']}"
    samples = dataset(config, rank, of, cache)
    workers = config["settings"]["num_workers"]
    order = PretrainingSampler(Megatron.records(config), config, rank, of)
    loader = torch.utils.data.DataLoader(
        samples, batch_sampler=order, num_workers=workers,
        persistent_workers=workers > 0)
    while True:
        for batch in loader:
            yield batch["tokens"], batch["labels"]


if __name__ == "__main__":
    common.main(sys.modules[__name__])
