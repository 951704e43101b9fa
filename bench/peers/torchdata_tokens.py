"""torchdata's StatefulDataLoader, which torchtitan resumes by, over the rows of
torch_memmap.py: with its stateful RandomSampler, or, for several consumers,
StatefulDistributedSampler.

A resume loads the state after as many batches; it is made of the state of a first batch
with the counts that it would have (with workers, of another order). Settings: 0, 1 or 2
worker processes.
"""

import sys

import common
import torch_memmap
from pytorch_dataloader import settings
from torch_memmap import load_libraries

TITLE = "torchdata StatefulDataLoader"
VENV = "torch"
DISTRIBUTIONS = ["torchdata", "torch", "numpy"]
WORKLOADS = ["divided", "shared"]
SHARES = False
NOTE = "a Dataset of a memory map, its own RandomSampler"


def loader(rows, config):
    import torch
    from torchdata import stateful_dataloader
    from torchdata.stateful_dataloader import sampler
    rank, of = common.share(config)
    order = (sampler.RandomSampler(
        rows, generator=torch.Generator().manual_seed(common.SEED)) if of == 1 else
             sampler.StatefulDistributedSampler(rows, of, rank, seed=common.SEED,
                                                drop_last=True))
    workers = config["settings"]["num_workers"]
    return stateful_dataloader.StatefulDataLoader(
        rows, batch_size=config["batch"], sampler=order, num_workers=workers,
        drop_last=True, persistent_workers=workers > 0)


def counted(state, batches, batch):
    """The state of a first batch, as it is after so many."""
    counts = {"_num_yielded": batches, "_sampler_iter_yielded": batches,
              "_snapshot_step": batches, "samples_yielded": batches * batch,
              "yielded": batches * batch}
    return {key: (counted(value, batches, batch) if isinstance(value, dict)
                  else counts.get(key, value)) for key, value in state.items()}


def batches(config):
    torch = load_libraries()
    rows = torch_memmap.dataset(config)
    batch = config["batch"]
    data = loader(rows, config)
    behind = common.passed(len(rows), config) // batch
    if behind > 0:
        # A state of few rows: to draw an order of all takes as long as a resume.
        few = loader(torch.utils.data.Subset(
            rows, range(8 * batch * config["consumers"])), config)
        next(iter(few))
        data.load_state_dict(counted(few.state_dict(), behind, batch))
    while True:
        yield from data


if __name__ == "__main__":
    common.main(sys.modules[__name__])
