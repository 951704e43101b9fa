#!/usr/bin/env python3
"""Question: do N ranks cost what one costs?

Method: `penstock bench` over the same photographs (random-resized crop to 224,
flip, float16 channels first) with 1, 2, 4 and 8 ranks in turn, --runs times; a
split job, so each sample goes to one rank. CPU seconds per 1,000 samples, of
the broker and of all ranks, which read one byte of every cache line; ratios are
to one rank in the same round.

Isolation: a private broker for each run; page cache warm; indexing and the
broker's start are in its CPU time, so a run takes --epochs of them. Limit: the
clock of CPU time counts what neighbours do to the caches.

    bench/make_photographs.py --out photographs
    bench/ranks_benchmark.py --build build/dev --photographs photographs
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile

SPEC = """\
dataset: photographs
source:
  image_folder: {{path: {photographs}}}
shuffle: {{seed: 42}}
map:
  - decode_image: {{crop: {{random_resized: {{scale: [0.08, 1.0], ratio: [0.75, 1.3333]}}}}, size: [224, 224]}}
  - flip: {{horizontal: 0.5}}
  - normalize: {{mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], dtype: float16, layout: chw}}
batch: {{size: 64}}
epochs: {epochs}
"""


def run(build, spec, ranks):
    """CPU seconds per 1,000 samples."""
    said = subprocess.run(
        [build / "client" / "command" / "penstock", "bench", "--dataset", spec,
         "--ranks", str(ranks), "--json"],
        stdout=subprocess.PIPE, check=True)
    return json.loads(said.stdout)["cpu_s_per_1k_samples"]


def spread(values):
    return (f"{statistics.mean(values):.3f}"
            f" ({min(values):.3f}-{max(values):.3f})")


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--photographs", type=pathlib.Path, required=True)
    parser.add_argument("--ranks", default="1,2,4,8")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tiny", action="store_true",
                        help="one minimal run: shows that it works")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    ranks = [int(n) for n in arguments.ranks.split(",")]
    if arguments.tiny:
        arguments.runs, arguments.epochs, ranks = 1, 1, ranks[:2]

    costs = {n: [] for n in ranks}
    with tempfile.TemporaryDirectory() as folder:
        spec = pathlib.Path(folder) / "photographs.yaml"
        spec.write_text(SPEC.format(
            photographs=arguments.photographs.resolve(),
            epochs=arguments.epochs))
        run(arguments.build, spec, ranks[0])  # warms the page cache
        for _ in range(arguments.runs):
            for n in ranks:
                costs[n].append(run(arguments.build, spec, n))

    ratios = {n: [cost / one for cost, one in zip(costs[n], costs[ranks[0]])]
              for n in ranks}
    if arguments.json:
        print(json.dumps({"cpu_s_per_1k_samples": costs, "ratios": ratios}))
        return
    print(f"{arguments.runs} interleaved runs of each")
    print(f"ranks  CPU s / 1,000 samples   ratio to {ranks[0]}")
    for n in ranks:
        print(f"{n:5}  {spread(costs[n]):22}  {spread(ratios[n])}")


if __name__ == "__main__":
    main()
