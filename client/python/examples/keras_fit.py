"""Keras 3: `fit` with any backend.

    KERAS_BACKEND=jax torchrun --nproc-per-node 2 keras_fit.py

`fit` takes PyTorch's loaders. Killed and started again, it goes on with the epoch after
its last backup: Keras keeps no place within an epoch. Each process trains a model of its
own on its part of the data; one process needs neither torchrun nor a process group.
Needs keras, torch and the backend.
"""

import keras
import penstock.torch
import torch
from torch.utils.data import TensorDataset

if __name__ == "__main__":
    torch.distributed.init_process_group("gloo")
    keras.utils.set_random_seed(1)
    torch.manual_seed(1)
    x = torch.randn(640, 16)
    dataset = TensorDataset(x, x.sum(1))
    loader = penstock.torch.DataLoader(dataset, batch_size=32, shuffle=True)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")

    def begin_epoch(epoch, _):
        torch.distributed.barrier()  # backups of all ranks are of the same epoch
        loader.set_epoch(epoch)

    model.fit(torch.utils.data.DataLoader(loader, batch_size=None), epochs=3, callbacks=[
        keras.callbacks.BackupAndRestore(f"backup-{torch.distributed.get_rank()}"),
        keras.callbacks.LambdaCallback(on_epoch_begin=begin_epoch)])
    print("trained", model.get_weights()[0].tolist(), flush=True)
