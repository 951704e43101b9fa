#!/usr/bin/python3
"""Makes a folder of real photographs to measure with.

What: N JPEGs of 500 x 375 pixels and 40 to 110 KB, the usual size of
ImageNet's, in one sub-folder per class as image_folder wants them; or the same
pixels in another format, of any size in bytes. Each is a
random part of one of the photographs in Debian's mate-backgrounds, shrunk to
500 x 375; the class is the photograph's name.

Why: the time to decode a picture depends on what is in it. Noise and flat colours
decode unlike photographs, and nothing may have to be downloaded to measure.

The same arguments give the same files, byte for byte, on one Debian release.
The folder appears under its name when it is complete; run again, the command
finds it complete and does nothing.

    /usr/bin/python3 bench/make_photographs.py --out /tmp/photographs
"""

import argparse
import io
import os
import pathlib
import random
import shutil
import sys

try:
    from PIL import Image
except ImportError:
    sys.exit("no Pillow for this Python: apt-get install python3-pil, and run "
             "with /usr/bin/python3")

PICTURES = "/usr/share/backgrounds/mate"
# Photographs; the other backgrounds are drawn, or the same at another size.
NAMES = ["nature/*.jpg", "abstract/Elephants.jpg"]
WIDTH, HEIGHT = 500, 375
BYTES_MIN, BYTES_MAX = 40_000, 110_000
QUALITY_MIN, QUALITY_MAX = 30, 98
# Parts of a picture are tried, too: of a flat sky no quality makes 40 KB.
PARTS_MAX = 8
SAVE_AS = {"png": "PNG", "webp": "WEBP", "tif": "TIFF"}
SAVE_WITH = {"png": {}, "webp": {"quality": 90}, "tif": {"compression": "tiff_lzw"}}


def encode(image, quality):
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return file.getvalue()


def distance(data):
    """Bytes outside the wanted range."""
    return max(BYTES_MIN - len(data), len(data) - BYTES_MAX, 0)


def encode_near(image, target):
    """The file whose size is nearest to target bytes, by halving qualities."""
    low, high = QUALITY_MIN, QUALITY_MAX
    best = None
    while low <= high:
        quality = (low + high) // 2
        data = encode(image, quality)
        if best is None or abs(len(data) - target) < abs(len(best) - target):
            best = data
        if len(data) < target:
            low = quality + 1
        else:
            high = quality - 1
    return best


def random_part(picture, draw):
    """A random box of the wanted aspect, at least 500 x 375, shrunk to that."""
    scale_max = min(picture.width / WIDTH, picture.height / HEIGHT)
    scale = draw.uniform(1, scale_max)
    width, height = int(WIDTH * scale), int(HEIGHT * scale)
    left = draw.randint(0, picture.width - width)
    top = draw.randint(0, picture.height - height)
    return picture.resize((WIDTH, HEIGHT), Image.Resampling.LANCZOS,
                          box=(left, top, left + width, top + height))


def make_photograph(picture, seed, form):
    draw = random.Random(seed)
    if form != "jpg":
        file = io.BytesIO()
        random_part(picture, draw).save(file, SAVE_AS[form], **SAVE_WITH[form])
        return file.getvalue()
    best = None
    for _ in range(PARTS_MAX):
        target = draw.randint(BYTES_MIN, BYTES_MAX)
        data = encode_near(random_part(picture, draw), target)
        best = data if best is None else min(best, data, key=distance)
        if distance(best) == 0:
            break
    return best


def show_progress(done, total):
    if not sys.stderr.isatty():
        return
    filled = 40 * done // total
    end = "\n" if done == total else ""
    print(f"\r[{'#' * filled}{'.' * (40 - filled)}] {done}/{total}", end=end,
          file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=pathlib.Path, required=True,
                        help="the folder to make")
    parser.add_argument("--count", type=int, default=1000,
                        help="photographs (default: %(default)s)")
    parser.add_argument("--format", choices=["jpg", *SAVE_AS], default="jpg",
                        help="(default: %(default)s)")
    parser.add_argument("--pictures", type=pathlib.Path, default=PICTURES,
                        help="where mate-backgrounds is (default: %(default)s)")
    arguments = parser.parse_args()
    if arguments.count < 1:
        parser.error("--count: wanted 1 or more")

    out = arguments.out
    if out.exists():
        there = sum(1 for _ in out.glob(f"*/*.{arguments.format}"))
        if there != arguments.count:
            sys.exit(f"{out} exists and holds {there} photographs, not "
                     f"{arguments.count}: remove it or name another --out")
        print(f"{out} is complete: {there} photographs")
        return
    folder = pathlib.Path(arguments.pictures)
    paths = sorted(path for name in NAMES for path in folder.glob(name))
    if not paths:
        sys.exit(f"no photographs in {folder}: apt-get install mate-backgrounds")

    partial = out.with_name(out.name + ".partial")
    if partial.exists():
        shutil.rmtree(partial)
    sizes = []
    # Class by class, so that one decoded picture is in memory at a time.
    for which, path in enumerate(paths):
        numbers = range(which, arguments.count, len(paths))
        if not numbers:
            continue
        with Image.open(path) as image:
            picture = image.convert("RGB")
        class_folder = partial / path.stem
        class_folder.mkdir(parents=True)
        for number in numbers:
            data = make_photograph(picture, number, arguments.format)
            (class_folder / f"{number:06}.{arguments.format}").write_bytes(data)
            sizes.append(len(data))
            show_progress(len(sizes), arguments.count)
    os.rename(partial, out)
    outside = sum(1 for size in sizes if not BYTES_MIN <= size <= BYTES_MAX)
    print(f"{out}: {len(sizes)} photographs, {sum(sizes) // len(sizes)} bytes "
          "each on average" + (f", {outside} outside {BYTES_MIN} to {BYTES_MAX}"
                               if arguments.format == "jpg" else ""))


if __name__ == "__main__":
    main()
