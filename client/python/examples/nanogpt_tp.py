"""The GPT of nanogpt_ddp.py, data parallel 2 × tensor parallel 2, by a DeviceMesh.

    torchrun --nproc-per-node 4 nanogpt_tp.py --out out

The two processes of a tensor-parallel group are one rank of the loader and get the same
batch from the same memory; nobody broadcasts it. Beside PyTorch's
distributed/tensor_parallelism/fsdp_tp_example.py, what differs:

     device_mesh = init_device_mesh(device_type, (dp_size, tp_size), mesh_dim_names=("dp", "tp"))
    -dp_rank = dp_mesh.get_local_rank()
    +layout = penstock.parallel.of_mesh(device_mesh)
    +loader = penstock.torch.DataLoader(dataset, features=("input", "target"),
    +                                   **layout.options())
    -for i in range(num_iterations):
    -    # seeding with dp_rank to ensure identical inputs for TP groups
    -    torch.manual_seed(i + dp_rank)
    -    inp = torch.randint(32000, (8, 256), device=device_type)
    +for inp, target in loader:
         output = sharded_model(inp)

Needs torch.
"""

import argparse
import os
import pathlib

import nanogpt_ddp
import penstock.parallel
import penstock.torch
import torch
import torch.distributed as dist
from nanogpt_model import GPT
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel,
                                               parallelize_module)


def parallel_model(mesh):
    """Heads and hidden units are divided over `tp`, parameters and batches over `dp`."""
    torch.manual_seed(1337)
    model = GPT()
    columns, rows = ColwiseParallel, RowwiseParallel
    for block in model.blocks:
        parallelize_module(block, mesh["tp"], {
            "q": columns(), "k": columns(), "v": columns(), "out": rows(),
            "up": columns(), "down": rows()})
        fully_shard(block, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default="out", metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--tp", type=int, default=2)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size() // options.tp, options.tp),
                            mesh_dim_names=("dp", "tp"))
    nanogpt_ddp.prepare(options.out)
    model = parallel_model(mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    layout = penstock.parallel.of_mesh(mesh)
    loader = penstock.torch.DataLoader(
        nanogpt_ddp.windows(options.out / "train.bin"), features=("input", "target"),
        autostart=True, **layout.options())
    losses = []
    for _, (inp, target) in zip(range(options.steps), loader):
        loss = model(inp, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    print(f"rank {layout.rank} of {layout.world_size}, replica {layout.replica} of "
          f"{layout.replicas}: loss {losses[0]:.3f}, then {losses[-1]:.3f}", flush=True)
    dist.barrier()
    os._exit(0)  # a thread of Gloo's may abort an orderly end (pytorch/pytorch issue 190489)


if __name__ == "__main__":
    main()
