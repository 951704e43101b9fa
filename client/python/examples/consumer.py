"""The ranks that producer.py feeds: learn how a pendulum moves.

Fits next = state @ weights by gradient descent; see producer.py for how to run both.
"""

import numpy as np
import penstock
from producer import SPEC


def main():
    dataset = penstock.Dataset.stream(SPEC, name="pendulums").batch(256)
    weights = np.zeros((2, 2), np.float32)
    rows, error = 0, 0.0
    with penstock.attach(dataset, job="pendulums") as reader:
        for batch in reader:
            found = batch["state"] @ weights - batch["next"]
            weights -= 0.1 / max(len(found), 1) * (batch["state"].T @ found)
            rows += len(found)
            error = 0.9 * error + 0.1 * float(np.square(found).mean())
        print(f"rank {reader.rank}: {rows} rows, squared error {error:.4f}",
              flush=True)


if __name__ == "__main__":
    main()
