"""A hyper-parameter search: trainers with different learning rates share one
broadcast job, so each picture is read and decoded once for all of them.

    penstock run --ranks 4 -- python3 hyperparameter_search.py

Every consumer gets every batch; one that is a window behind makes the others wait
(`lag="skip"` lets it miss batches instead). Trains softmax regression on
Fashion-MNIST, in NumPy. Needs Debian's package dataset-fashion-mnist.
"""

import numpy as np
import penstock

FILES = "/usr/share/datasets/fashion-mnist"
RATES = [0.003, 0.01, 0.03, 0.1]


def dataset(part):
    return (penstock.Dataset.idx(f"{FILES}/{part}-images-idx3-ubyte.gz",
                                 f"{FILES}/{part}-labels-idx1-ubyte.gz",
                                 name=f"fashion-mnist-{part}")
            .shuffle(seed=42)
            .map(penstock.normalize(mean=0.2860, std=0.3530))
            .batch(250))


def main():
    weights = np.zeros((28 * 28, 10), np.float32)
    with penstock.attach(dataset("train"), delivery="broadcast") as reader:
        rate = RATES[reader.rank % len(RATES)]
        rows = 0
        for batch in reader:
            images = batch["image"].reshape(len(batch["label"]), -1)
            scores = np.exp(images @ weights)
            scores /= scores.sum(axis=1, keepdims=True)
            scores[np.arange(len(scores)), batch["label"]] -= 1
            weights -= rate / len(images) * (images.T @ scores)
            rows += len(images)

    right = 0
    with penstock.attach(dataset("t10k"), job="test",
                         delivery="broadcast") as reader:
        for batch in reader:
            images = batch["image"].reshape(len(batch["label"]), -1)
            right += int(((images @ weights).argmax(1) == batch["label"]).sum())
    print(f"rate {rate}: {rows} pictures, test accuracy {right / 10_000:.4f}",
          flush=True)


if __name__ == "__main__":
    main()
