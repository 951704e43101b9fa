"""The benchmarks in Python run and print their tables."""

import importlib.util
import json
import pathlib
import subprocess
import sys

import pytest

BENCH = pathlib.Path(__file__).parents[2] / "bench"
BENCHMARK = BENCH / "python_benchmark.py"


def test_it_runs_and_prints_its_tables():
    result = subprocess.run(
        [sys.executable, str(BENCHMARK), "--tiny", "--json"], text=True,
        capture_output=True, timeout=300)
    assert result.returncode == 0, result.stderr
    tables = json.loads(result.stdout)
    assert [len(table["rows"]) for table in tables][:2] == [1, 2]
    # With PyTorch the loader is measured too.
    assert len(tables) == (16 if importlib.util.find_spec("torch") else 9)
    for table in tables:
        for row in table["rows"]:
            assert row["mean"] > 0 and row["ratio"] > 0, row


def test_groups_are_measured():
    ways = ["penstock", "each", *(["broadcast"] if importlib.util.find_spec("torch") else [])]
    result = subprocess.run(
        [sys.executable, str(BENCH / "groups_benchmark.py"), "--json", "--data", "tokens",
         "--replicas", "4", "--rows", "64", "--batch", "8", "--steps", "3", "--step-ms", "0", "--runs", "1",
         "--ways", *ways], text=True, capture_output=True, timeout=300)
    assert result.returncode == 0, result.stderr
    found = {(replicas, way): runs[0] for replicas, way, runs in json.loads(result.stdout)}
    assert set(found) == {(4, way) for way in ways}
    # All read what they say they read.
    for (replicas, way), (read, cpu_s, mib, mean_ms, p99_ms) in found.items():
        if way != "penstock":  # the broker reads ahead
            assert read == (replicas if way == "each" else 1)
        assert cpu_s >= 0 and mib > 0 and p99_ms > 0 and mean_ms > 0


def test_rows_of_other_hosts_are_measured():
    result = subprocess.run([sys.executable, str(BENCH / "makers.py"), "--tiny"], text=True,
                            capture_output=True, timeout=300)
    if result.returncode == 77:
        pytest.skip(result.stderr)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "over a bare socket's" in result.stdout
