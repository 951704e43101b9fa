"""MosaicML Streaming over sequences of tokens in MDS shards, one sequence with its last
target a sample, as LLM Foundry writes them: a StreamingDataset in its
StreamingDataLoader, which resumes by the number of samples.

Settings: 0, 1 or 2 worker processes.
"""

import os
import pathlib
import sys

import common
from data import Tokens
from mosaic_streaming import load_libraries, own_folder, serve  # noqa: F401
from pytorch_dataloader import settings

TITLE = "MosaicML Streaming"
VENV = "torch"
DISTRIBUTIONS = ["mosaicml-streaming", "torch"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "MDS shards of uint16 sequences"
FORMAT = "tokens-mds"
EPOCH = 1_000_000  # samples in what it takes for an epoch, where it does not resume


def prepare(files, folder):
    load_libraries()
    import numpy
    from streaming import MDSWriter
    tokens = numpy.memmap(f"{files}/tokens.bin", dtype=numpy.uint16, mode="r")
    length = Tokens.LENGTH
    with MDSWriter(out=folder, columns={"tokens": f"ndarray:uint16:{length + 1}"}) as out:
        for at in range(0, len(tokens) - length, length):
            out.write({"tokens": tokens[at:at + length + 1]})


def batches(config):
    import numpy
    import torch
    rank, of = common.share(config)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(of),
                      LOCAL_WORLD_SIZE=str(of), MASTER_ADDR="localhost",
                      MASTER_PORT=str(config["server"]["port"]))
    streaming = load_libraries()

    class Sequences(streaming.StreamingDataset):
        def __getitem__(self, index):
            row = torch.from_numpy(
                super().__getitem__(index)["tokens"].astype(numpy.int64))
            return row[:-1], row[1:]

    resumes = config["from"] > 0
    with own_folder(pathlib.Path(config["formats"], FORMAT), config) as folder:
        data = Sequences(
            local=str(folder), epoch_size=None if resumes else EPOCH,
            batch_size=config["batch"], shuffle=True, shuffle_seed=common.SEED,
            num_canonical_nodes=1)
    workers = config["settings"]["num_workers"]
    loader = streaming.StreamingDataLoader(
        data, batch_size=config["batch"], num_workers=workers, drop_last=True,
        persistent_workers=workers > 0)
    if resumes:
        loader.load_state_dict({
            "epoch": 0, "num_canonical_nodes": 1, "shuffle_seed": common.SEED,
            "initial_physical_nodes": 1, "sample_in_epoch":
            of * common.passed(Tokens.records(config), config)})
    while True:
        yield from loader


if __name__ == "__main__":
    common.main(sys.modules[__name__])
