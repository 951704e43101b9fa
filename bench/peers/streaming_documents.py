"""MosaicML Streaming over documents in MDS shards: a StreamingDataset in a PyTorch
DataLoader, pad_sequence. It has no batches of like length.

Settings: 0, 1 or 2 worker processes.
"""

import os
import pathlib
import sys

import common
from mosaic_streaming import EPOCH, load_libraries, own_folder, serve  # noqa: F401
from pytorch_dataloader import settings

TITLE = "MosaicML Streaming"
VENV = "torch"
DISTRIBUTIONS = ["mosaicml-streaming", "torch"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "pad_sequence of random documents: it has no batches of like length"


def batches(config):
    import torch
    rank, of = common.share(config)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(of),
                      LOCAL_WORLD_SIZE=str(of), MASTER_ADDR="localhost",
                      MASTER_PORT=str(config["server"]["port"]))
    streaming = load_libraries()

    def collate(rows):
        rows = [torch.from_numpy(row["tokens"]) for row in rows]
        return (torch.nn.utils.rnn.pad_sequence(rows, batch_first=True),
                torch.tensor([len(row) for row in rows]))

    with own_folder(pathlib.Path(config["files"], "mds"), config) as folder:
        data = streaming.StreamingDataset(
            local=str(folder), epoch_size=EPOCH, batch_size=config["batch"],
            shuffle=True, shuffle_seed=common.SEED, num_canonical_nodes=1)
    workers = config["settings"]["num_workers"]
    loader = torch.utils.data.DataLoader(
        data, batch_size=config["batch"], num_workers=workers, drop_last=True,
        collate_fn=collate, persistent_workers=workers > 0)
    while True:
        yield from loader


if __name__ == "__main__":
    common.main(sys.modules[__name__])
