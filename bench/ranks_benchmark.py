#!/usr/bin/env python3
"""Question: do N ranks cost what one costs, in CPU time and in memory?

Method: `penstock run` with 1, 2, 4 and 8 ranks in turn, --runs times, over the
same photographs (random-resized crop to 224, flip, float16 channels first), as
bench/peers.py runs it: a window of a job that runs already. `split`, each
sample to one rank, and `broadcast`, each to all. CPU seconds of the whole
process tree per 1,000 samples of the dataset; ranks take batches and do not
read them, so that all of it is the loader's. Ratios are to one rank of the
same round. Memory: the proportional set sizes of the tree, less those of its
ranks before they attach, less what of it is the job's segment; the index is in
it.

Isolation: a private broker for each run, the page cache warm. Limit: the clock
of CPU time counts what neighbours do to the caches.

--many: up to 1,024 ranks and 256 jobs, whose rows cost nothing, so that the
rest is the broker's overhead (many_ranks_benchmark.cc).

    bench/make_photographs.py --out photographs
    bench/ranks_benchmark.py --build build/dev --photographs photographs
    bench/ranks_benchmark.py --build build/dev --many
"""

import argparse
import json
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "peers"))

import measure  # noqa: E402
import penstock_broker  # noqa: E402

WORKLOADS = {"split": "divided", "broadcast": "shared"}
BATCH = 64
MIB = 1 << 20


def segment_pss_bytes(pids):
    """What these processes have of the job's segment: pages that are there, each
    counted once in all."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/smaps", encoding="utf-8",
                      errors="replace") as file:
                ours = False
                for line in file:
                    if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
                        ours = "/memfd:penstock segment" in line
                    elif ours and line.startswith("Pss:"):
                        total += int(line.split()[1]) * 1024
        except OSError:
            continue  # it has just ended
    return total


def run(options, folder, delivery, ranks):
    """(CPU seconds per 1,000 samples, MiB beside the ranks and the segment)"""
    config = {
        "workload": WORKLOADS[delivery], "consumers": ranks,
        "settings": {"workers": options.workers},
        "batch": BATCH if delivery == "broadcast" else max(1, BATCH // ranks),
        "dtype": "float16", "data": "photographs",
        "photographs": str(options.photographs.resolve()),
        "build": str(options.build.resolve()), "folder": folder,
        "socket": folder + "/driver", "touch": None, "from": 0,
    }
    with measure.Run(config, pathlib.Path(folder) / "log", 120) as one:
        one.start(penstock_broker.command(config))
        result = one.measure(options.warmup, 2, options.window)
        segment = segment_pss_bytes(measure.descendants())
    # A rate counts what all take; a sample of a broadcast is taken by all.
    times = ranks if delivery == "broadcast" else 1
    return (result["cpu_s_per_1k"] * times,
            (result["loader_pss_bytes"] - segment) / MIB)


def spread(values):
    return (f"{statistics.mean(values):.3f}"
            f" ({min(values):.3f}-{max(values):.3f})")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--photographs", type=pathlib.Path)
    parser.add_argument("--many", action="store_true",
                        help="up to 1,024 ranks and 256 jobs instead")
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--warmup", type=float, default=2, help="seconds")
    parser.add_argument("--window", type=float, default=8, help="seconds")
    parser.add_argument("--tiny", action="store_true",
                        help="one minimal run: shows that it works")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    if options.many:
        command = [options.build / "bench" / "many_ranks_benchmark",
                   f"--runs={options.runs}"]
        command += ["--tiny"] * options.tiny + ["--json"] * options.json
        sys.exit(subprocess.run(command, check=False).returncode)
    if options.photographs is None:
        parser.error("--photographs is needed without --many")
    ranks = [int(n) for n in options.ranks.split(",")]
    if options.tiny:
        options.runs, options.warmup, options.window = 1, 0, 0.2
        ranks = ranks[:2]

    measure.adopt_orphans()
    cells = [(delivery, n) for delivery in WORKLOADS for n in ranks]
    costs = {cell: [] for cell in cells}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(options.runs):
            for cell in cells:
                costs[cell].append(run(options, folder, *cell))

    rows = []
    for delivery, n in cells:
        mine, one = costs[delivery, n], costs[delivery, ranks[0]]
        rows.append({
            "delivery": delivery, "ranks": n,
            "cpu_s_per_1k_samples": [cpu for cpu, _ in mine],
            "ratio": [cpu / base for (cpu, _), (base, _) in zip(mine, one)],
            "memory_mib": [mib for _, mib in mine]})
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{options.runs} interleaved runs of each, {options.window:g} s")
    print(f"{'delivery':10} ranks  {'CPU s / 1,000 samples':22}  "
          f"{'ratio to ' + str(ranks[0]):20}  MiB beside segment and ranks")
    for row in rows:
        print(f"{row['delivery']:10} {row['ranks']:5}  "
              f"{spread(row['cpu_s_per_1k_samples']):22}  "
              f"{spread(row['ratio']):20}  "
              f"{statistics.mean(row['memory_mib']):.1f}")


if __name__ == "__main__":
    main()
