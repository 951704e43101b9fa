"""Inference: ranks of any speed share the pictures, and each output is put where its
picture belongs, by the number that the batch has for each row.

    penstock run --ranks 3 -- python3 inference.py --out scores.f32

In `dynamic` a rank takes the next batch when it is done with one, so a fast one does
more. Batches that a rank's death gives to another are written again, in the same
places. The model, the mean picture of each class, is fitted here in NumPy; needs
Debian's package dataset-fashion-mnist.
"""

import argparse
import os

import numpy as np
import penstock

FILES = "/usr/share/datasets/fashion-mnist"


def dataset(part):
    return (penstock.Dataset.idx(f"{FILES}/{part}-images-idx3-ubyte.gz",
                                 f"{FILES}/{part}-labels-idx1-ubyte.gz",
                                 name=f"fashion-mnist-{part}")
            .map(penstock.normalize(mean=0.2860, std=0.3530))
            .batch(250, last="partial"))


def mean_pictures():
    sums, counts = np.zeros((10, 28 * 28)), np.zeros(10)
    with penstock.attach(dataset("train"), job="fit", delivery="broadcast") as reader:
        for batch in reader:
            np.add.at(sums, batch["label"], batch["image"].reshape(batch.rows, -1))
            counts += np.bincount(batch["label"], minlength=10)
    return (sums / counts[:, None]).astype(np.float32)


def open_outputs(path, shape):
    """A file of float32 that all ranks write to; it keeps what it has."""
    with open(os.open(path, os.O_RDWR | os.O_CREAT), "r+b") as file:
        os.truncate(file.fileno(), 4 * shape[0] * shape[1])
    return np.memmap(path, np.float32, "r+", shape=shape)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", default="scores.f32")
    means = mean_pictures()
    path = parser.parse_args().out
    rows = right = 0
    with penstock.attach(dataset("t10k"), job="inference", delivery="dynamic") as reader:
        outputs = open_outputs(path, (reader.sample_count, 10))
        for batch in reader:
            images = batch["image"].reshape(batch.rows, -1)
            scores = -((images[:, None] - means) ** 2).sum(axis=2)
            outputs[batch.ids] = scores
            rows += batch.rows
            right += int((scores.argmax(axis=1) == batch["label"]).sum())
        outputs.flush()
        print(f"rank {reader.rank}: {rows} pictures, {right} right", flush=True)


if __name__ == "__main__":
    main()
