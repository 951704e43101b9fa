"""Megatron-Energon's packing over documents in WebDataset shards: a TaskEncoder with
select_samples_to_pack and pack_selected_samples, as its documentation has them. Energon
brings no packer; this is the greedy knapsack of Megatron-LM's multimodal example: the
largest document that still fits, next.

Settings: 0, 1 or 2 worker processes.
"""

import io
import sys
import tarfile

import common
from data import Packed
from pytorch_dataloader import settings

TITLE = "Energon"
VENV = "energon"
DISTRIBUTIONS = ["megatron-energon", "torch", "numpy"]
WORKLOADS = ["divided", "shared"]
SHARES = False
PACKS = True
BUFFER = 1000  # documents that are packed together
NOTE = f"greedy knapsack of {BUFFER} documents"
FORMAT = "packed-energon"
SHARD = 8192  # documents


def load_libraries():
    import torch
    torch.set_num_threads(1)
    from megatron import energon
    return energon


def prepare(files, folder):
    import pathlib
    load_libraries()
    import numpy
    from megatron.energon.flavors import BaseWebdatasetFactory
    ends, tokens = Packed.open(files)
    names = []
    for number, document in enumerate(numpy.split(tokens, ends[:-1])):
        if number % SHARD == 0:
            names.append(f"{number // SHARD:05}.tar")
            tar = tarfile.open(pathlib.Path(folder, names[-1]), "w")
        member = tarfile.TarInfo(f"{number:08}.tokens")
        content = document.tobytes()
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
        if number % SHARD == SHARD - 1 or number == len(ends) - 1:
            tar.close()
    BaseWebdatasetFactory.prepare_dataset(
        pathlib.Path(folder), names, split_parts_ratio=[("train", 1)],
        shuffle_seed=None, tar_index_only=False, workers=1)
    pathlib.Path(folder, ".nv-meta", "dataset.yaml").write_text(
        "__module__: megatron.energon\n__class__: CrudeWebdataset\n")


def batches(config):
    energon = load_libraries()
    import numpy
    from energon_encoder import Encoder
    rank, of = common.share(config)
    data = energon.get_train_dataset(
        f"{config['formats']}/{FORMAT}", batch_size=config["batch"],
        shuffle_buffer_size=100, max_samples_per_sequence=100,
        packing_buffer_size=BUFFER, task_encoder=Encoder(),
        worker_config=energon.WorkerConfig(
            rank=rank, world_size=of, num_workers=config["settings"]["num_workers"]))
    # A number for each document of the batch.
    before = numpy.arange(config["batch"])[:, None] * Packed.LONGEST
    for batch in energon.get_loader(data):
        segments = batch.segment_ids.numpy()
        lengths = numpy.bincount((segments + before)[segments > 0])
        yield batch.tokens, lengths[lengths > 0]


if __name__ == "__main__":
    common.main(sys.modules[__name__])
