"""LitData over tokens: chunks that its optimize() makes for a TokensLoader, whose blocks
are a sequence and its last target, in a StreamingDataLoader, as LitGPT uses them.

An epoch is each block 20 times (subsample), since the loader starts its workers anew in
each. A resume loads the state with as many samples. Settings: 0, 1 or 2 workers.
"""

import functools
import os
import sys

import common
from data import Tokens
from litdata_chunks import load_libraries
from pytorch_dataloader import settings

TITLE = "LitData"
VENV = "torch"
DISTRIBUTIONS = ["litdata", "torch", "numpy"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "TokensLoader of 64 MB chunks: blocks do not overlap"
FORMAT = "tokens-litdata"
BLOCK = Tokens.LENGTH + 1
BLOCKS = 1 << 15  # of a chunk
EPOCH = 20.0  # times the blocks, where it does not resume


def part(files, begin):
    import numpy
    tokens = numpy.memmap(f"{files}/tokens.bin", dtype=numpy.uint16, mode="r")
    yield numpy.array(tokens[begin:begin + BLOCK * BLOCKS])


def prepare(files, folder):
    litdata = load_libraries()
    tokens = os.path.getsize(f"{files}/tokens.bin") // 2
    litdata.optimize(functools.partial(part, files),
                     list(range(0, tokens - BLOCK + 1, BLOCK * BLOCKS)), folder,
                     chunk_size=BLOCK * BLOCKS, num_workers=1,
                     item_loader=litdata.TokensLoader())


def batches(config):
    litdata = load_libraries()
    import numpy
    import torch
    rank, of = common.share(config)
    os.environ.update(GLOBAL_RANK=str(rank), WORLD_SIZE=str(of))

    class Sequences(litdata.StreamingDataset):
        def __getitem__(self, index):
            row = torch.from_numpy(super().__getitem__(index).astype(numpy.int64))
            return row[:-1], row[1:]

    resumes = config["from"] > 0
    data = Sequences(
        f"{config['formats']}/{FORMAT}", item_loader=litdata.TokensLoader(BLOCK),
        shuffle=True, drop_last=True, seed=common.SEED,
        subsample=1.0 if resumes else EPOCH)
    workers = config["settings"]["num_workers"]
    loader = litdata.StreamingDataLoader(
        data, batch_size=config["batch"], num_workers=workers,
        persistent_workers=workers > 0)
    if resumes:
        behind = common.passed(len(data) * of, config)
        state = loader.state_dict()
        state["num_samples_yielded"] = state["dataset"]["num_samples_yielded"] = behind
        state["current_epoch"] = state["dataset"]["current_epoch"] = 1
        state["dataset"]["sample_in_epoch"] = behind * of
        loader.load_state_dict(state)
    while True:
        yield from loader


if __name__ == "__main__":
    common.main(sys.modules[__name__])
