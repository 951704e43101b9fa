"""A data process: makes rows instead of reading them.

    penstock run --ranks 2 -- sh -c '
      [ "$RANK" = 0 ] && python3 producer.py --steps 1000 & python3 consumer.py'

Here it simulates a pendulum: each row is where it is, how fast it turns, and where it
is a moment later. Several may run at once (`producers:` in consumer.py); one that is
killed is waited for, and what it had put is delivered.
"""

import argparse

import numpy as np
import penstock

SPEC = {"state": penstock.TensorSpec((2,), "float32"),   # angle, speed
        "next": penstock.TensorSpec((2,), "float32")}
MOMENT_S = 0.05
GRAVITY = 9.81  # m/s^2, of a pendulum of one metre


def simulate(states):
    angle, speed = states[:, 0], states[:, 1]
    speed = speed - GRAVITY * np.sin(angle) * MOMENT_S
    return np.stack([angle + speed * MOMENT_S, speed], axis=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--pendulums", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    random = np.random.default_rng(options.seed)
    states = random.uniform(-1, 1, (options.pendulums, 2)).astype(np.float32)

    with penstock.producer("pendulums", SPEC,
                           batch=options.pendulums) as out:
        for _ in range(options.steps):
            with out.slot() as slot:  # written where the broker reads it
                slot["state"][...] = states
                states = simulate(states)
                slot["next"][...] = states


if __name__ == "__main__":
    main()
