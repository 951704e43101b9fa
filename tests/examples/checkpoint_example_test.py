#!/usr/bin/env python3
"""Promise: the checkpoint example gets the result of an undisturbed run, however often
it is killed and with whatever number of ranks it resumes. Method: the programs, as a
person runs them.

Usage: checkpoint_example_test.py BUILD
"""

import pathlib
import subprocess
import sys
import tempfile

BUILD = pathlib.Path(sys.argv[1]).resolve()
SOURCE = pathlib.Path(__file__).resolve().parents[2]
PENSTOCK = BUILD / "client/command/penstock"
EXAMPLE = BUILD / "client/examples/checkpoint"
SPEC = SOURCE / "client/examples/checkpoint/numbers.yaml"


def run(folder, ranks, *arguments):
    """The exit status of one run of the trainer."""
    return subprocess.run(
        [PENSTOCK, "run", "--dataset", SPEC, "--ranks", str(ranks), "--",
         EXAMPLE, folder, *arguments],
        stderr=subprocess.PIPE, text=True, timeout=120)


def result(folder):
    return subprocess.run([EXAMPLE, folder, "--print"], check=True,
                          stdout=subprocess.PIPE, text=True).stdout


def main():
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        undisturbed = run(folder / "once", 1)
        assert undisturbed.returncode == 0, undisturbed.stderr
        wanted = result(folder / "once")
        assert wanted.startswith("steps 525 samples 50000 "), wanted

        # 105 steps an epoch: in the first epoch, at its end, in a later one.
        for ranks, die_after in ((4, 37), (3, 105), (1, 106), (5, 300)):
            died = run(folder / "often", ranks, "--die-after", str(die_after))
            assert died.returncode == 128 + 9, (died.returncode, died.stderr)
        ended = run(folder / "often", 2)
        assert ended.returncode == 0, ended.stderr
        got = result(folder / "often")
        assert got == wanted, f"wanted {wanted}, got {got}"
    print(wanted, end="")


if __name__ == "__main__":
    main()
