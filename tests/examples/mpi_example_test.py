#!/usr/bin/env python3
"""Promise: the MPI example trains with four ranks, on however few cores, with the
machine's own mpirun (Open MPI 4 or 5). Method: one epoch, with the launcher options
of ./quickstart; the example itself fails unless every sample came once.

Usage: mpi_example_test.py BUILD
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile

BUILD = pathlib.Path(sys.argv[1]).resolve()
EXAMPLE = (pathlib.Path(__file__).resolve().parents[2]
           / "client/examples/fashion_mnist")


def main():
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        spec = folder / "train.yaml"
        five = (EXAMPLE / "train.yaml").read_text()
        spec.write_text(five.replace("epochs: 5", "epochs: 1"))
        table = folder / "table.json"
        subprocess.run(
            [BUILD / "client/command/penstock", "run", "--dataset", spec,
             "--ranks", "0", "--", "mpirun", "--oversubscribe", "-np", "4", *root,
             BUILD / "client/examples/fashion_mnist", spec, "--test",
             EXAMPLE / "test.yaml", "--json", table, "--min-accuracy", "0.75"],
            check=True, timeout=200,
            env=os.environ | {"OMPI_MCA_btl": "^tcp",
                              "OMPI_MCA_mpi_yield_when_idle": "1",
                              "OMPI_MCA_btl_vader_single_copy_mechanism": "none"})
        table_rows = json.loads(table.read_text())
    assert table_rows["ranks"] == 4, table_rows
    assert table_rows["epochs"] == 1, table_rows


if __name__ == "__main__":
    main()
