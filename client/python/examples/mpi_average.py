"""The Horovod way: rank variables from mpirun, gradients averaged by MPI.

    penstock run --ranks 0 -- mpirun -np 4 python3 mpi_average.py

`penstock.attach` finds rank and world size where mpirun (or horovodrun) puts them;
nothing says them here. Trains softmax regression on Fashion-MNIST, in NumPy. Needs
mpi4py, and Debian's package dataset-fashion-mnist. As root, OpenMPI wants
`mpirun --allow-run-as-root`; with fewer cores than ranks, `--oversubscribe`.
"""

import argparse

import numpy as np
import penstock
from mpi4py import MPI

FILES = "/usr/share/datasets/fashion-mnist"


def dataset(part):
    return (penstock.Dataset.idx(f"{FILES}/{part}-images-idx3-ubyte.gz",
                                 f"{FILES}/{part}-labels-idx1-ubyte.gz",
                                 name=f"fashion-mnist-{part}")
            .shuffle(seed=42)
            .map(penstock.normalize(mean=0.2860, std=0.3530))
            .batch(250))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--epochs", type=int, default=2)
    options = parser.parse_args()
    world = MPI.COMM_WORLD
    weights = np.zeros((28 * 28, 10), np.float32)

    with penstock.attach(dataset("train").repeat(options.epochs)) as reader:
        for batch in reader:
            images = batch["image"].reshape(len(batch["label"]), -1)
            scores = np.exp(images @ weights)
            scores /= scores.sum(axis=1, keepdims=True)
            scores[np.arange(len(scores)), batch["label"]] -= 1
            # The rows of all ranks count alike, however they are divided.
            gradient = images.T @ scores / batch.global_rows
            world.Allreduce(MPI.IN_PLACE, gradient)
            weights -= 0.05 * gradient

    right = 0
    with penstock.attach(dataset("t10k"), job="test") as reader:
        for batch in reader:
            images = batch["image"].reshape(len(batch["label"]), -1)
            right += int(((images @ weights).argmax(1) == batch["label"]).sum())
    right = world.reduce(right)
    if world.rank == 0:
        print(f"{world.size} ranks: test accuracy {right / 10_000:.4f}")


if __name__ == "__main__":
    main()
