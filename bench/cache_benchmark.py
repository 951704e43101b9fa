#!/usr/bin/env python3
"""Question: what does `cache` give beside the page cache, when the data are twice
the memory; and what do decoded photographs give beside decoding them each time?

Method: `penstock bench` with a private broker, one rank, which reads its batches;
turn by turn, --rounds times, medians. A rate is of the epochs after the first:
of the time of --epochs epochs less that of one.

memory: records of 64 KiB, in files of twice --mib; the whole process tree is in
a control group of --mib (memory.limit_in_bytes or memory.max), which counts the
page cache too, and the files are dropped from it before each run. `page cache`
reads through it; `cache` reads past it (io: direct) and gives the rest of the
group's memory, less --left-mib, to `cache: {memory: ..., at: 0}`. Whether hits
are worth it depends on the storage: its rate, direct and shuffled, is shown.

photographs: decode_image to 224 x 224 and flip, normalize to float16; none,
`cache: {memory}` after the first step, `cache: {disk}` and `snapshot`, all with
the files in the page cache.

Isolation: a private broker a run. Limit: one host, one disk; needs root for the
group, else the first part is left out.

    bench/make_photographs.py --out photographs
    bench/cache_benchmark.py --build build/dev --photographs photographs
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import tempfile

MIB = 1 << 20
RECORD = 64 << 10
V1 = pathlib.Path("/sys/fs/cgroup/memory")
V2 = pathlib.Path("/sys/fs/cgroup")


@contextlib.contextmanager
def memory_group(limit):
    """The file to write a process id to, of a group with this limit; None: there is
    none for us."""
    root, key = (V1, "memory.limit_in_bytes") if V1.is_dir() else (V2, "memory.max")
    folder = root / f"penstock-cache-benchmark-{os.getpid()}"
    try:
        folder.mkdir()
        (folder / key).write_text(str(limit))
    except OSError as error:
        print(f"no control group of memory: {error}", file=sys.stderr)
        yield None
        return
    try:
        yield folder / "cgroup.procs"
    finally:
        with contextlib.suppress(OSError):
            folder.rmdir()


def drop(paths):
    """Drops the files from the page cache."""
    for path in paths:
        with open(path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def run(arguments, spec, epochs, group=None):
    """Returns what `penstock bench` says of so many epochs."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder, "spec.yaml")
        file.write_text(spec)
        bin = pathlib.Path(arguments.build)
        command = [bin / "client/command/penstock", "bench", "--dataset", file,
                   "--ranks", "1", "--epochs", str(epochs), "--json"]
        if group is not None:
            command = ["/bin/sh", "-c", 'echo $$ > "$0" && exec "$@"', group, *command]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, check=True,
            env={**os.environ, "PENSTOCKD": str((bin / "broker/penstockd").resolve()),
                 "PENSTOCK_CACHE_DIR": arguments.folder + "/cache",
                 "PENSTOCK_SNAPSHOT_PATH": arguments.folder + "/snapshots"})
        return json.loads(done.stdout)


def later_rate(arguments, spec, prepare, group=None):
    """Samples a second after the first epoch."""
    prepare()
    first = run(arguments, spec, 1, group)
    prepare()
    all_of_them = run(arguments, spec, arguments.epochs, group)
    return ((all_of_them["samples"] - first["samples"]) /
            (all_of_them["wall_s"] - first["wall_s"]))


def rounds(arguments, variants):
    """Prints the median of each, and its ratio to the first."""
    rates = {name: [] for name in variants}
    for _ in range(arguments.rounds):
        for name, measure in variants.items():
            rates[name].append(measure())
    base = statistics.median(next(iter(rates.values())))
    for name, values in rates.items():
        median = statistics.median(values)
        print(f"  {name:<24} {median:>10,.0f} samples/s  {median / base:6.2f} x  "
              f"({min(values):,.0f} to {max(values):,.0f})")


def memory(arguments):
    limit = arguments.mib * MIB
    files = []
    for i in range(4):
        path = pathlib.Path(arguments.folder, f"records-{i}")
        with open(path, "wb") as file:
            for _ in range(2 * limit // 4 // RECORD):
                file.write(os.urandom(RECORD))
        files.append(str(path))
    size = limit - arguments.left_mib * MIB

    def spec(io, kept):
        return (f"dataset: records\nsource: {{fixed_length_records: {{files: {files}, io: {io},"
                f" features: {{x: {{dtype: uint8, shape: [{RECORD}]}}}}}}}}\n"
                f"shuffle: {{seed: 1}}\nbatch: {{size: 16}}\nepochs: 9\n{kept}\n")

    with memory_group(limit) as group:
        if group is None:
            return
        print(f"{2 * arguments.mib} MiB of records, in a group of {arguments.mib} MiB:")
        variants = {
            "page cache": spec("buffered", ""),
            "direct, no cache": spec("direct", ""),
            f"cache of {size // MIB} MiB": spec("direct", f"cache: {{memory: {size}, at: 0}}"),
        }
        rounds(arguments, {
            name: lambda text=text: later_rate(arguments, text, lambda: drop(files), group)
            for name, text in variants.items()})


def photographs(arguments):
    def spec(kept):
        return (f"dataset: photographs\nsource: {{image_folder: {{path: "
                f"{pathlib.Path(arguments.photographs).resolve()}}}}}\nshuffle: {{seed: 1}}\n"
                "map:\n- decode_image: {crop: center, size: 224}\n- flip: {horizontal: 0.5}\n"
                "- normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], "
                "dtype: float16, layout: chw}\n"
                f"batch: {{size: 64}}\nepochs: 9\n{kept}\n")

    def clean():
        for name in ("cache", "snapshots"):
            shutil.rmtree(pathlib.Path(arguments.folder, name), ignore_errors=True)

    print("photographs to 224 x 224, flipped at random, float16:")
    variants = {
        "decoded each time": "",
        "cache, memory": "cache: {memory: 4G}",
        "cache, memory, encoded": "cache: {memory: 4G, at: 0}",
        "cache, disk": "cache: {disk: 16G}",
        "cache, disk, zstd 1": "cache: {disk: 16G, zstd: 1}",
        "snapshot": f"snapshot: {{path: {arguments.folder}/snapshots/p}}",
    }
    rounds(arguments, {
        name: lambda text=text: later_rate(arguments, spec(text), clean)
        for name, text in variants.items()})


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="folder of the build")
    parser.add_argument("--photographs", help="folder of make_photographs.py")
    parser.add_argument("--folder", help="for files; on the disk to be measured")
    parser.add_argument("--mib", type=int, default=1024, help="memory of the group")
    parser.add_argument("--left-mib", type=int, default=256,
                        help="of it, for all but the cache")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="does it run?")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.mib = 0
        arguments.epochs, arguments.rounds = 2, 1
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        arguments.folder = folder
        if arguments.mib > 0:
            memory(arguments)
        if arguments.photographs:
            photographs(arguments)


if __name__ == "__main__":
    main()
