"""The benchmark of the Python package runs and prints its tables."""

import importlib.util
import json
import pathlib
import subprocess
import sys

BENCHMARK = (pathlib.Path(__file__).parents[2] / "bench"
             / "python_benchmark.py")


def test_it_runs_and_prints_its_tables():
    result = subprocess.run(
        [sys.executable, str(BENCHMARK), "--tiny", "--json"], text=True,
        capture_output=True, timeout=300)
    assert result.returncode == 0, result.stderr
    tables = json.loads(result.stdout)
    assert [len(table["rows"]) for table in tables][:2] == [1, 2]
    # With PyTorch the loader is measured too.
    assert len(tables) == (14 if importlib.util.find_spec("torch") else 7)
    for table in tables:
        for row in table["rows"]:
            assert row["mean"] > 0 and row["ratio"] > 0, row
