"""A small GPT on characters with DDP: nanoGPT's train.py without its get_batch.

    torchrun --nproc-per-node 2 nanogpt_ddp.py --out out

The text is that of the licences which Debian has. Killed and started again, also with
another number of processes, it goes on with the batch after its last checkpoint. On several
hosts, with --out on storage that all share, torchrun does that by itself when one dies:

    torchrun --nnodes 1:2 --nproc-per-node 8 --max-restarts 3 --rdzv-backend c10d
      --rdzv-endpoint node1:29500 --rdzv-id gpt nanogpt_ddp.py --out /shared/out

Beside
nanoGPT, whose data/shakespeare_char/prepare.py writes the same files, what differs:

    -def get_batch(split):
    -    data = np.memmap(f'{split}.bin', dtype=np.uint16, mode='r')
    -    ix = torch.randint(len(data) - block_size, (batch_size,))
    -    x = torch.stack([torch.from_numpy((data[i:i+block_size]).astype(np.int64)) for i in ix])
    -    y = torch.stack([torch.from_numpy((data[i+1:i+1+block_size]).astype(np.int64)) for i in ix])
    -    return x, y
    +loader = penstock.torch.DataLoader(windows(train_bin), features=("input", "target"),
    +                                   state=state, autostart=True)
    -    X, Y = get_batch('train')
    +for X, Y in loader:
         checkpoint = {'model': ..., 'optimizer': ...,
    +                  'loader': loader.state_dict()}

Of all windows that get_batch draws from each comes once, in an order of the seed's; it may
draw one twice, and after a restart the same ones again. Needs torch.
"""

import argparse
import os
import pathlib

import numpy as np
import penstock.torch
import torch
import torch.distributed as dist
from nanogpt_model import BLOCK, GPT
from torch.nn.parallel import DistributedDataParallel

LICENCES = pathlib.Path("/usr/share/common-licenses")
BATCH = 32  # windows of all processes


def prepare(folder):
    """Bytes as tokens; the last tenth is for validation."""
    if dist.get_rank() == 0 and not (folder / "val.bin").exists():
        text = b"".join(path.read_bytes() for path in sorted(LICENCES.iterdir())
                        if not path.is_symlink())
        tokens = np.frombuffer(text, np.uint8).astype(np.uint16)
        train = len(tokens) * 9 // 10
        folder.mkdir(parents=True, exist_ok=True)
        tokens[:train].tofile(folder / "train.bin")
        tokens[train:].tofile(folder / "val.bin")
    dist.barrier()


def windows(file, shuffle=True):
    data = penstock.Dataset.tokens(file, BLOCK, stride=1 if shuffle else None)
    return (data.shuffle(seed=1337) if shuffle else data).batch(BATCH, last="drop")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=pathlib.Path, default="out", metavar="FOLDER")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--save-every", type=int, default=50, metavar="STEPS")
    options = parser.parse_args()
    dist.init_process_group("gloo")
    first, checkpoint = dist.get_rank() == 0, options.out / "ckpt.pt"
    prepare(options.out)
    torch.manual_seed(1337)
    model = DistributedDataParallel(GPT())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    # Not None: with that a broker whose ranks died would go on with their job.
    step, state = 0, {"epoch": 0, "row": 0}
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step, state = saved["step"], saved["loader"]
    loader = penstock.torch.DataLoader(windows(options.out / "train.bin"), state=state,
                                       features=("input", "target"), autostart=True)
    for X, Y in loader:
        loss = model(X, Y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if first and step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
        if first and step % options.save_every == 0:
            torch.save({"model": model.module.state_dict(), "step": step,
                        "optimizer": optimizer.state_dict(),
                        "loader": loader.state_dict()}, f"{checkpoint}.part")
            os.replace(f"{checkpoint}.part", checkpoint)  # whole or not at all
        if step >= options.steps:
            break
    if first:
        val = penstock.torch.DataLoader(windows(options.out / "val.bin", shuffle=False), rank=0,
                                        world_size=1, job="val", autostart=True,
                                        features=("input", "target"))
        with torch.no_grad():
            losses = [model.module(X, Y).item() for X, Y in val]
        print(f"val loss {np.mean(losses):.3f}", flush=True)
    dist.barrier()
    os._exit(0)  # a thread of Gloo's may abort an orderly end (pytorch/pytorch issue 190489)


if __name__ == "__main__":
    main()
