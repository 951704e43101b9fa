#!/usr/bin/env python3
"""Question: how many of the broker's instructions are its own, that is neither
decoding, nor transforms, nor reading?

Method: penstockd under callgrind, one worker, photographs as in the README,
four ranks that drain it. Counted for one epoch and for three: the difference,
divided by its samples, is what a sample costs, without the start. A function
belongs to the file it is in, or to the library: libjpeg is decoding,
broker/transform and Highway's vectors in it are transforms, broker/io and
liburing are reading; memory (malloc, memcpy, memset, thread-local storage, all
but a little of it called by libjpeg) is shown by itself. The debug information
says which file a function is in.

Isolation: instructions do not depend on what else runs. Limit: valgrind has no
AVX-512, so the transforms are counted as AVX2; the kernel's are not counted.

    apt install valgrind
    cmake -S . -B build/dev -DCMAKE_BUILD_TYPE=RelWithDebInfo && cmake --build build/dev
    bench/make_photographs.py --out photographs
    bench/instructions.py --build build/dev --photographs photographs
    bench/instructions.py --build build/dev      # rows that cost nothing
"""

import argparse
import collections
import json
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

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
FREE = """\
dataset: free
source: {{range: 128000}}
shuffle: {{seed: 42}}
batch: {{size: 64}}
epochs: {epochs}
"""
RANKS = 4
START_LIMIT_S = 60
KINDS = [  # the first that matches file, function or library
    ("decoding", r"libjpeg|jpeg_decoder|JpegDecoder"),
    ("transforms",
     r"broker/transform/|N_(AVX|SSE|SSSE|NEON)|Rgbx|TriangleTaps|RowProgram|"
     r"PixelPass|Resampler|libhwy|/hwy/|AugmentationDraws|Random123|libm"),
    ("reading", r"read_uring|read_pread|UringReader|liburing|preadv?2?\.c"),
    ("memory", r"malloc|memcpy|memmove|memset|tls_get_addr|setjmp|sigjmp"),
]
LINE = re.compile(r"\s*([\d,]+) \(\s*[\d.]+%\)\s+(.*)")


def count(build, folder, photographs, epochs):
    """{function: instructions} of one broker process."""
    spec = folder / "photographs.yaml"
    spec.write_text((SPEC if photographs else FREE).format(
        photographs=photographs, epochs=epochs))
    config = folder / "penstockd.yaml"
    # Valgrind writes code as it runs, which the sandbox forbids.
    config.write_text("workers: 1\nsandbox: off\n")
    socket, out = folder / "socket", folder / f"callgrind.{epochs}"
    broker = subprocess.Popen(
        ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}",
         build / "broker" / "penstockd", "--config", config, "--socket",
         socket],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while not socket.exists():
            if broker.poll() is not None or time.monotonic() > deadline:
                sys.exit("instructions.py: penstockd does not start under"
                         " valgrind")
            time.sleep(0.05)
        finished = subprocess.run(
            [build / "client" / "command" / "penstock", "bench", "--dataset",
             spec, "--ranks", str(RANKS), "--socket", socket, "--json"],
            stdout=subprocess.PIPE, check=True)
    finally:
        broker.send_signal(signal.SIGTERM)
        broker.wait()
        socket.unlink(missing_ok=True)
    listing = subprocess.run(
        ["callgrind_annotate", "--threshold=100", "--auto=no", out],
        stdout=subprocess.PIPE, text=True, check=True).stdout
    functions = collections.Counter()
    for line in listing.splitlines():
        match = LINE.match(line)
        if match and "PROGRAM TOTALS" not in match[2]:
            functions[match[2].strip()] += int(match[1].replace(",", ""))
    return functions, json.loads(finished.stdout)["samples"]


def kind_of(function):
    for kind, pattern in KINDS:
        if re.search(pattern, function):
            return kind
    return "the broker's own"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--photographs", type=pathlib.Path,
                        help="default: none, rows that cost nothing instead")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    if shutil.which("valgrind") is None:
        print("instructions.py: nothing measured: valgrind is not installed"
              " (apt install valgrind)")
        return
    photographs = arguments.photographs and arguments.photographs.resolve()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        one, few = count(arguments.build, folder, photographs, 1)
        three, many = count(arguments.build, folder, photographs, 3)
    kinds = collections.Counter()
    own = collections.Counter()
    for function, instructions in three.items():
        kind = kind_of(function)
        per_sample = (instructions - one.get(function, 0)) / (many - few)
        kinds[kind] += per_sample
        if kind == "the broker's own":
            own[function] += per_sample
    total = sum(kinds.values())
    if arguments.json:
        print(json.dumps({"instructions_per_sample": kinds}))
        return
    print(f"{total:,.0f} instructions a sample, over {many - few} samples")
    for kind, instructions in kinds.most_common():
        print(f"  {kind:17} {instructions:11,.0f}  {instructions / total:6.2%}")
    print("most of its own:")
    for function, instructions in own.most_common(5):
        print(f"  {instructions:9,.0f}  {function[:100]}")


if __name__ == "__main__":
    main()
