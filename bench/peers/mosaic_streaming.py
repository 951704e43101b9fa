"""MosaicML Streaming: MDS shards of the JPEGs in a StreamingDataset, which
knows the ranks by itself, in a PyTorch DataLoader.

Shared: each consumer is alone, with hard links to the shards in a folder of
its own, since one folder cannot be opened by two. Settings: 0, 1 or 2 workers.
Pillow and the table of common.PillowTransform decode.
"""

import contextlib
import fcntl
import io
import os
import pathlib
import shutil
import sys

import common
import pytorch_dataloader
from data import DATA
from pytorch_dataloader import settings

TITLE = "MosaicML Streaming"
VENV = "torch"
DISTRIBUTIONS = ["mosaicml-streaming", "torch", "pillow"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "Pillow and a NumPy table; MDS shards"
FORMAT = "mds"
EPOCH = 200_000  # samples in what it takes for an epoch


def prepare(photographs, folder):
    common.import_torchvision()
    from streaming import MDSWriter
    for part in common.parts(photographs):
        shards = pathlib.Path(folder, part.relative_to(photographs))
        with MDSWriter(out=str(shards),
                       columns={"jpg": "bytes", "label": "int"}) as out:
            for path, label in common.photographs(part):
                out.write({"jpg": pathlib.Path(path).read_bytes(),
                           "label": label})


def load_libraries():
    pytorch_dataloader.load_libraries()
    import streaming
    return streaming


def serve(config, ready):
    """Clears what killed runs left in /dev/shm, as its documentation says."""
    streaming = load_libraries()
    streaming.base.util.clean_stale_shared_memory()
    common.meet(ready)


@contextlib.contextmanager
def own_folder(folder, config):
    """The folder of shards to open, and nobody else opens one meanwhile: jobs that
    begin in the same moment may choose the same names in /dev/shm."""
    if config["workload"] != "shared":
        yield folder
        return
    mine = pathlib.Path(config["formats"], f"{config['data']}-mds-{config['rank']}")
    shutil.rmtree(mine, ignore_errors=True)
    shutil.copytree(folder, mine, copy_function=os.link, ignore=lambda _, names: [
        name for name in names if name.startswith(f"{config['data']}-mds-")])
    with open(pathlib.Path(config["folder"], "streaming.lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield mine


def batches(config):
    import torch
    transform = common.PillowTransform(config["dtype"])
    rank, of = common.share(config)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(of),
                      LOCAL_WORLD_SIZE=str(of), MASTER_ADDR="localhost",
                      MASTER_PORT=str(config["server"]["port"]))
    streaming = load_libraries()
    folder = (pathlib.Path(config["files"]) if config["data"] == "mds"
              else pathlib.Path(config["formats"], FORMAT))

    class Photographs(streaming.StreamingDataset):
        def __getitem__(self, index):
            sample = super().__getitem__(index)
            return (torch.from_numpy(transform(io.BytesIO(sample["jpg"]))),
                    sample["label"])

    with own_folder(folder, config) as folder:
        data = Photographs(
            streams=[streaming.Stream(local=str(part), proportion=weight)
                     for part, weight in zip(
                         common.parts(folder), DATA[config["data"]].WEIGHTS)],
            epoch_size=EPOCH, batch_size=config["batch"], shuffle=True,
            shuffle_seed=common.SEED, num_canonical_nodes=1)
    workers = config["settings"]["num_workers"]
    loader = torch.utils.data.DataLoader(
        data, batch_size=config["batch"], num_workers=workers, drop_last=True,
        persistent_workers=workers > 0)
    while True:
        yield from loader


if __name__ == "__main__":
    common.main(sys.modules[__name__])
