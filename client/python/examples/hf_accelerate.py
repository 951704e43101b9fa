"""Hugging Face Accelerate.

    torchrun --nproc-per-node 2 hf_accelerate.py

`prepare` leaves the loader as it is. Killed and started again, the program goes on with
the batch after its last checkpoint. Needs accelerate.
"""

import os

import accelerate
import penstock.torch
import torch
from torch.utils.data import TensorDataset

if __name__ == "__main__":
    accelerator = accelerate.Accelerator(cpu=True)
    torch.manual_seed(1)
    x = torch.randn(640, 16)
    dataset = TensorDataset(x, x.sum(1))
    loader = penstock.torch.DataLoader(dataset, batch_size=32, shuffle=True)
    model = torch.nn.Linear(16, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    accelerator.register_for_checkpointing(loader)
    if os.path.isdir("checkpoint"):
        accelerator.load_state("checkpoint")
    for epoch in range(loader.epoch, 3):
        for step, (inputs, targets) in enumerate(loader, 1):
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs)[:, 0], targets)
            accelerator.backward(loss)
            optimizer.step()
            if step % 4 == 0:
                accelerator.save_state("checkpoint")
    print("trained", accelerator.unwrap_model(model).weight.tolist(), flush=True)
    accelerator.end_training()
