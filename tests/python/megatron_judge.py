#!/usr/bin/env python3
"""Compares source megatron, and megatron_rules.py, with megatron-core: by hand, in an
environment with penstock, torch and megatron-core.

    python tests/python/megatron_judge.py [--samples 100000] [--folder DIR]

Ten configurations, each of so many samples at least: every number of every sample that
Megatron's datasets give, built by Penstock and from the cache that Megatron left."""

import argparse
import os
import tempfile
import time
from collections import OrderedDict
from pathlib import Path

import megatron_rules as rules
import numpy as np
import penstock
import torch.distributed
from megatron.core.datasets.blended_megatron_dataset_builder import (
    BlendedMegatronDatasetBuilder)
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

FEATURES = ["tokens", "labels", "loss_mask", "position_ids"]
USES = ["train", "valid", "test"]


class Tokenizer:
    """As much of one as GPTDataset asks."""
    eod = 5
    eos = 5

    def __init__(self, vocab_size, pad):
        self.vocab_size = vocab_size
        if pad is not None:
            self.pad = pad
        self.unique_identifiers = OrderedDict(vocab_size=vocab_size)


def configurations(samples):
    """What each asks of both: documents of each part, then options."""
    one = [dict(count=4000, longest=400)]
    return [
        dict(parts=one, length=64),
        dict(parts=one, length=64, samples=samples, seed=7),
        dict(parts=one, length=61, samples=samples, split="969,30,1", extra_token=False),
        dict(parts=[dict(count=20000, longest=40)], length=256, samples=samples // 4,
             pad=3, mask=True, reset=True),
        dict(parts=[dict(count=300, longest=9000, dtype="int32", vocabulary=200000)],
             length=128, samples=samples, seed=4294967295),
        dict(parts=one, length=64, samples=samples // 10, split="90,10", use="valid"),
        dict(parts=one, length=33, samples=samples // 10, split="90,10", use="valid",
             last_partial="pad"),
        dict(parts=[dict(count=3000, longest=300), dict(count=900, longest=1000),
                    dict(count=50, longest=5000)], weights=[0.7, 0.2, 0.1], length=64,
             samples=2 * samples),
        dict(parts=[dict(count=300 + 20 * i, longest=200) for i in range(20)],
             weights=[1.0 + i for i in range(20)], length=64, samples=2 * samples,
             split="99,1"),
        dict(parts=[dict(count=9000, longest=900), dict(count=5000, longest=400)],
             length=32),
    ]


def megatron_dataset(one, prefixes, cache):
    weights = one.get("weights")
    split = one.get("split")
    sizes = [0, 0, 0]
    use = USES.index(one.get("use", "train"))
    sizes[use] = one.get("samples")
    if split is not None:
        blend, per_split = (prefixes, weights), None
        # Every split is built, of one sample at least.
        sizes = [1 if size == 0 else size for size in sizes]
    else:
        blend, per_split = None, [None, None, None]
        per_split[use] = (prefixes, weights)
    config = GPTDatasetConfig(
        random_seed=one.get("seed", 1234), sequence_length=one["length"], blend=blend,
        blend_per_split=per_split, split=split, path_to_cache=str(cache),
        tokenizer=Tokenizer(one["parts"][0].get("vocabulary", 1000), one.get("pad")),
        reset_position_ids=one.get("reset", False), reset_attention_mask=False,
        eod_mask_loss=one.get("mask", False), create_attention_mask=False,
        drop_last_partial_validation_sequence=one.get("last_partial") != "pad",
        add_extra_token_to_sequence=one.get("extra_token", True))
    return BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True,
                                         config).build()[use]


def penstock_dataset(one, prefixes, cache=None):
    weights = one.get("weights")
    where = (prefixes[0] if len(prefixes) == 1 else prefixes if weights is None
             else list(zip(weights, prefixes)))
    given = {key: one[key] for key in ("samples", "seed", "split", "use") if key in one}
    config = {key: one[key] for key in ("extra_token", "last_partial", "pad") if key in one}
    if one.get("mask"):
        config["eod_mask_loss"] = Tokenizer.eod
    if one.get("reset"):
        config["reset_position_ids"] = Tokenizer.eod
    return penstock.Dataset.megatron(where, one["length"], features=FEATURES, cache=cache,
                                     gpt_config=config, **given).batch(256)


def rendered(one, documents):
    """The features of sample i, by the rules."""
    masks = dict(pad=one.get("pad", -1), eod=Tokenizer.eod, mask_eod=one.get("mask", False),
                 reset=one.get("reset", False))
    options = dict(seed=one.get("seed", 1234), split=one.get("split"),
                   use=one.get("use", "train"), extra=int(one.get("extra_token", True)),
                   pads_last=one.get("last_partial") == "pad")
    samples, weights = one.get("samples"), one.get("weights")
    if len(documents) == 1:
        gpt = rules.Gpt(documents[0], one["length"], samples=samples, **options)
        return lambda i: rules.features(gpt.text(i), one["length"], **masks)
    if weights is None:
        gpts = [rules.Gpt(each, one["length"], **options) for each in documents]
        parts, numbers = rules.blended_all([gpt.size for gpt in gpts])
    else:
        shares = rules.normalized(weights)
        gpts = [rules.Gpt(each, one["length"], samples=rules.share(weight, samples, 0.005),
                          **options) for each, weight in zip(documents, shares)]
        parts, numbers = rules.blended(
            shares, sum(rules.share(weight, samples) for weight in shares))
    return lambda i: rules.features(gpts[parts[i]].text(numbers[i]), one["length"], **masks)


def compare(name, one, folder):
    rng = np.random.default_rng(len(name))
    documents, prefixes = [], []
    for i, part in enumerate(one["parts"]):
        documents.append(rules.random_documents(rng, part["count"], part["longest"],
                                                part.get("vocabulary", 1000)))
        prefixes.append(str(folder / f"{name}-{i}"))
        rules.write_dataset(prefixes[-1], documents[-1], part.get("dtype", "uint16"))
    cache = folder / f"{name}-cache"
    judge = megatron_dataset(one, prefixes, cache)
    by_rules = rendered(one, documents)
    begin = time.monotonic()
    built = penstock.attach(penstock_dataset(one, prefixes), job=f"{name}-built")
    left = penstock.attach(penstock_dataset(one, prefixes, cache), job=f"{name}-left")
    row = 0
    for batch, same in zip(built, left):
        for i in range(batch.rows):
            wanted, rule = judge[row], by_rules(row)
            for feature in FEATURES:
                number = wanted[feature].numpy()
                for found in (batch[feature][i], same[feature][i], rule[feature]):
                    if not np.array_equal(number, found):
                        raise SystemExit(f"{name}, sample {row}: {feature} differs:\n"
                                         f"{number}\n{found}")
            row += 1
    if row != len(judge):
        raise SystemExit(f"{name}: {row} samples; Megatron has {len(judge)}")
    built.close()
    left.close()
    print(f"{name}: {row} samples, no difference ({time.monotonic() - begin:.0f} s)",
          flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=100_000)
    parser.add_argument("--folder", type=Path)
    arguments = parser.parse_args()
    total = 0
    # A BlendedDataset asks for its rank.
    torch.distributed.init_process_group("gloo", rank=0, world_size=1,
                                         store=torch.distributed.HashStore())
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        with penstock.broker(workers=2) as broker:
            os.environ["PENSTOCK_SOCKET"] = broker.socket
            for i, one in enumerate(configurations(arguments.samples)):
                total += compare(f"configuration{i}", one, Path(folder))
    print(f"{total} samples in all, no difference")


if __name__ == "__main__":
    main()
