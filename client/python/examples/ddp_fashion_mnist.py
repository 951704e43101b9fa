"""PyTorch DDP on Fashion-MNIST, with checkpoints: kill it, and start it again with
another number of ranks.

    penstock run --ranks 4 -- python3 ddp_fashion_mnist.py --checkpoint ckpt.pt
    torchrun --nproc-per-node 2 ddp_fashion_mnist.py --checkpoint ckpt.pt

(torchrun needs a broker: the service, or `penstock run --ranks 0 -- torchrun ...`.)
What is Penstock's in it: the DataLoader, and its state beside the model's. Needs
torch, and Debian's package dataset-fashion-mnist.
"""

import argparse
import os

import penstock
import penstock.torch
import torch
import torch.distributed as dist
from torch import nn

FILES = "/usr/share/datasets/fashion-mnist"


def dataset(part, batch, epochs):
    return (penstock.Dataset.idx(f"{FILES}/{part}-images-idx3-ubyte.gz",
                                 f"{FILES}/{part}-labels-idx1-ubyte.gz",
                                 name=f"fashion-mnist-{part}")
            .shuffle(seed=42)
            .map(penstock.normalize(mean=0.2860, std=0.3530))
            .batch(batch)      # of all ranks together
            .repeat(epochs))


def save(path, model, optimizer, loader):
    if dist.get_rank() != 0:
        return
    torch.save({"model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "loader": loader.state_dict()}, path + ".part")
    os.replace(path + ".part", path)  # whole or not at all


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--checkpoint", required=True, metavar="FILE")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--stop-after", type=int, metavar="STEPS",
                        help="end without a checkpoint, as if killed")
    options = parser.parse_args()

    dist.init_process_group("gloo")  # rank and world size from the launcher
    torch.manual_seed(1)
    model = nn.parallel.DistributedDataParallel(nn.Sequential(
        nn.Flatten(), nn.Linear(28 * 28, 128), nn.ReLU(), nn.Linear(128, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = None
    if os.path.exists(options.checkpoint):
        saved = torch.load(options.checkpoint)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state = saved["loader"]
    loader = penstock.torch.DataLoader(
        dataset("train", options.batch, options.epochs),
        features=("image", "label"), state=state)

    steps = 0
    for epoch in range(loader.epoch, options.epochs):
        losses = []
        for images, labels in loader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            steps += 1
            if steps == options.stop_after:
                os._exit(3)
            if steps % options.save_every == 0:
                save(options.checkpoint, model, optimizer, loader)
        if dist.get_rank() == 0:
            print(f"epoch {epoch} of {options.epochs}, {dist.get_world_size()} "
                  f"ranks, {len(losses)} steps: mean loss "
                  f"{sum(losses) / max(len(losses), 1):.3f}", flush=True)
    save(options.checkpoint, model, optimizer, loader)
    loader.close()

    # Every rank looks at its part of the test set.
    right = torch.zeros(1)
    with penstock.attach(dataset("t10k", 1000, 1), job="test") as test:
        with torch.no_grad():
            for batch in test:
                tensors = batch.torch()
                found = model.module(tensors["image"]).argmax(1)
                right += (found == tensors["label"]).sum()
    dist.all_reduce(right)
    if dist.get_rank() == 0:
        print(f"test accuracy {right.item() / 10_000:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
    # Not the interpreter's own end: a thread of Gloo's that has not yet let go of
    # the last all_reduce's tensor would abort it (pytorch/pytorch issue 190489).
    os._exit(0)
