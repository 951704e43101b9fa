"""Packed documents in a loop like torchtitan's, resumed with another number of ranks.

    torchrun --nproc-per-node 2 torchtitan_loop.py --checkpoint ckpt --steps 60
    torchrun --nproc-per-node 3 torchtitan_loop.py --checkpoint ckpt --steps 120

The documents are the lines of the licences which Debian has. `Loader` has the interface
of torchtitan's BaseDataLoader and its batches: tokens, and positions that begin anew at each
document, in one dimension; labels are those of the next token. Beside torchtitan's trainer,
whose own loader refuses another number of ranks (its issue 811), what differs:

    -class GrainDataLoader(BaseDataLoader):
    +class Loader(BaseDataLoader):      # with a Config that has the dataset
     self.dataloader = config.dataloader.build(
         dp_world_size=dp_degree, dp_rank=dp_rank, tokenizer=self.tokenizer,
         max_context_length=..., num_tokens_per_batch=...)
     checkpoint: {"dataloader": self.dataloader}

Needs torch.
"""

import argparse
import json
import os
import pathlib

import penstock.packing
import penstock.parallel
import penstock.torch
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from nanogpt_model import GPT
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

LICENCES = pathlib.Path("/usr/share/common-licenses")
LENGTH = 128  # tokens of a packed row


def documents():
    files = [str(path) for path in LICENCES.iterdir() if not path.is_symlink()]
    return (penstock.Dataset.text_lines(sorted(files), 256, longer="cut", name="licences")
            .shuffle(seed=42)
            .map(penstock.encode_bytes(end=0)))


class Loader:
    """A Stateful of torch.distributed.checkpoint, whose state is any rank's."""

    def __init__(self, dataset, *, dp_world_size, dp_rank, num_tokens_per_batch, **_):
        # Processes that share a dp_rank (tp, pp, cp) are replicas of it.
        layout = penstock.parallel.of_data_rank(dp_rank, dp_world_size)
        self.loader = penstock.torch.DataLoader(
            dataset.batch(per_rank=num_tokens_per_batch // LENGTH, last="drop",
                          pack=penstock.pack(LENGTH, with_=["position_ids", "seq_lens"]))
            .repeat(), autostart=True, **layout.options())

    def __iter__(self):
        while True:  # epochs
            for batch in self.loader:
                flat = penstock.packing.flatten(batch)
                tokens, positions = flat["text"], flat["position_ids"]
                labels = penstock.packing.labels(tokens, positions, shifted=True)
                yield {"input": tokens[0], "positions": positions[0]}, labels[0]

    def state_dict(self):
        # One text: a checkpoint takes only the keys that it finds in the loader's own.
        return {"penstock": json.dumps(self.loader.state_dict())}

    def load_state_dict(self, state_dict):
        if state_dict:
            self.loader.load_state_dict(state_dict["penstock"])

    def close(self):
        self.loader.close()


def documents_mask(positions):
    """[tokens, tokens]: a token sees those before it in its document."""
    document = (positions == 0).cumsum(0)
    return (document[:, None] == document).tril()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--checkpoint", type=pathlib.Path, required=True, metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp",))
    torch.manual_seed(42)
    model = fully_shard(GPT(length=LENGTH), mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    loader = Loader(documents(), dp_world_size=mesh.size(), dp_rank=mesh.get_local_rank(),
                    num_tokens_per_batch=4 * LENGTH)

    def states():
        weights, moments = get_state_dict(model, optimizer)
        return {"model": weights, "optimizer": moments, "dataloader": loader}
    step = max([int(path.name[5:]) for path in options.checkpoint.glob("step-*")], default=0)
    if step > 0:
        saved = states()
        dcp.load(saved, checkpoint_id=options.checkpoint / f"step-{step}")
        set_state_dict(model, optimizer, model_state_dict=saved["model"],
                       optim_state_dict=saved["optimizer"])
    for inputs, labels in loader:
        positions = inputs["positions"]
        loss = model(inputs["input"][None], labels, positions, documents_mask(positions))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step == 1 or step % 20 == 0:
            print(f"step {step}, rank {dist.get_rank()}: loss {loss.item():.3f}", flush=True)
        if step >= options.steps:
            break
    dcp.save(states(), checkpoint_id=options.checkpoint / f"step-{step}")
    dist.barrier()
    os._exit(0)  # a thread of Gloo's may abort an orderly end (pytorch/pytorch issue 190489)


if __name__ == "__main__":
    main()
