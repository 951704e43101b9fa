#!/usr/bin/env python3
"""Promise: the producer example feeds its ranks each row once, and they learn from it.
Method: the programs, as a person runs them.

Usage: producer_example_test.py BUILD
"""

import pathlib
import re
import subprocess
import sys

BUILD = pathlib.Path(sys.argv[1]).resolve()
SOURCE = pathlib.Path(__file__).resolve().parents[2]


def main():
    done = subprocess.run(
        [BUILD / "client/command/penstock", "run", "--dataset",
         SOURCE / "client/examples/producer/pendulums.yaml", "--ranks", "2",
         "--", "sh", "-c",
         '[ "$RANK" = 0 ] && ./producer make 1000 & ./producer learn'],
        cwd=BUILD / "client/examples", stdout=subprocess.PIPE, text=True,
        timeout=100)
    print(done.stdout, end="")
    assert done.returncode == 0, done.returncode
    found = re.findall(r"rank (\d): (\d+) rows, squared error ([\d.]+)",
                       done.stdout)
    assert sorted(rank for rank, _, _ in found) == ["0", "1"], found
    assert sum(int(rows) for _, rows, _ in found) == 64_000, found
    assert all(float(error) < 0.01 for _, _, error in found), found


if __name__ == "__main__":
    main()
