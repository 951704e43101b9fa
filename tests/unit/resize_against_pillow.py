"""Promise: decode_image's pixels are Pillow's, and resize gives what Pillow's
Image.crop(box).resize(size, BILINEAR) gives, bit for bit, whatever the box, the size
and the number of channels. Method: the photographs of Debian's mate-backgrounds go
through resize_probe and through Pillow; every value is compared.

    resize_against_pillow.py PROBE [--pictures FOLDER]

Fails, and does not skip, without python3-pil, python3-numpy or mate-backgrounds
(packages.txt lists them).
"""

import argparse
import pathlib
import subprocess
import sys
import tempfile

import numpy
from PIL import Image

PICTURES = "/usr/share/backgrounds/mate"
# One of each kind: baseline, progressive, from several cameras and GIMP.
NAMES = [
    "nature/Dune.jpg", "nature/FreshFlower.jpg", "nature/GreenMeadow.jpg",
    "nature/RainDrops.jpg", "abstract/Elephants.jpg",
]
BOXES_AS_FRACTIONS = [  # left, top, width, height
    (0, 0, 1, 1),
    (0.1, 0.2, 0.5, 0.5),
    (0.37, 0.41, 0.08, 0.11),
    (0, 0.5, 1, 0.25),
    (0.9, 0, 0.1, 1),
]
SIZES = [(224, 224), (32, 48), (300, 97), (1, 1)]


class Probe:
    def __init__(self, program):
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def ask(self, *words):
        print(*words, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def close(self):
        self.process.stdin.close()
        assert self.process.wait() == 0, "the probe failed"


class Comparison:
    """Differences over all cases of one kind."""

    def __init__(self, allowed):
        self.allowed = allowed
        self.cases = self.values = self.different = self.worst = 0
        self.failures = []

    def add(self, case, ours, pillows):
        difference = numpy.abs(ours.astype(numpy.int32) - pillows)
        self.cases += 1
        self.values += difference.size
        self.different += int(numpy.count_nonzero(difference))
        worst = int(difference.max())
        self.worst = max(self.worst, worst)
        if worst > self.allowed:
            self.failures.append(f"{case}: differs by up to {worst}")

    def report(self, what):
        print(f"{what}: {self.cases} cases, {self.values} values, "
              f"{self.values - self.different} exact, "
              f"largest difference {self.worst} (allowed {self.allowed})")
        for failure in self.failures:
            print("  " + failure)
        return self.cases > 0 and not self.failures


def boxes_of(width, height):
    for left, top, box_width, box_height in BOXES_AS_FRACTIONS:
        left, top = int(left * width), int(top * height)
        yield (left, top, min(max(1, round(box_width * width)), width - left),
               min(max(1, round(box_height * height)), height - top))
    yield (width - 1, height - 1, 1, 1)
    yield (5, 7, 224, 224)  # already one of the sizes
    yield (5, 7, 224, 100)  # one side of it
    yield (3, 0, 480, 97)   # the other


def compare_decoding(probe, folder, path, comparison):
    raw = folder / "decoded"
    for mode, channels in (("RGB", 3), ("L", 1)):
        # Pillow decodes to gray itself when told so before it loads; otherwise
        # it would go by way of RGB.
        image = Image.open(path)
        image.draft(mode, image.size)
        if image.mode != mode:
            image = image.convert(mode)
        pillows = numpy.asarray(image).reshape(image.height, image.width, -1)
        answer = probe.ask("decode", path, channels, raw)
        assert answer == "ok", f"{path}: {answer}"
        ours = numpy.fromfile(raw, numpy.uint8).reshape(pillows.shape)
        comparison.add(f"{path} as {mode}", ours, pillows)


def compare_cmyk(probe, folder, path, comparison):
    cmyk = folder / "cmyk.jpg"
    Image.open(path).resize((301, 203)).convert("CMYK").save(cmyk, quality=90)
    compare = Image.open(cmyk)
    assert compare.mode == "CMYK"
    raw = folder / "decoded"
    for mode, channels in (("RGB", 3), ("L", 1)):
        pillows = compare.convert("RGB").convert(mode)
        pillows = numpy.asarray(pillows).reshape(203, 301, channels)
        answer = probe.ask("decode", cmyk, channels, raw)
        assert answer == "ok", f"{cmyk}: {answer}"
        ours = numpy.fromfile(raw, numpy.uint8).reshape(pillows.shape)
        comparison.add(f"CMYK as {mode}", ours, pillows)


def compare_resizing(probe, folder, path, mode, comparison):
    image = Image.open(path).convert(mode)
    channels = len(image.getbands())
    raw_in, raw_out = folder / "in", folder / "out"
    raw_in.write_bytes(image.tobytes())
    for left, top, width, height in boxes_of(*image.size):
        for size in SIZES:
            box = (left, top, left + width, top + height)
            pillows = numpy.asarray(
                image.crop(box).resize(size, Image.Resampling.BILINEAR))
            answer = probe.ask("resize", raw_in, image.height, image.width,
                               channels, left, top, width, height, size[1],
                               size[0], raw_out)
            case = f"{path} {mode} box {box} to {size}"
            assert answer == "ok", f"{case}: {answer}"
            ours = numpy.fromfile(raw_out, numpy.uint8)
            comparison.add(case, ours.reshape(pillows.shape), pillows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("probe", help="the built resize_probe")
    parser.add_argument("--pictures", type=pathlib.Path, default=PICTURES)
    arguments = parser.parse_args()
    decoding, resizing = Comparison(allowed=0), Comparison(allowed=0)
    probe = Probe(arguments.probe)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        for name in NAMES:
            path = pathlib.Path(arguments.pictures) / name
            compare_decoding(probe, folder, path, decoding)
            compare_resizing(probe, folder, path, "RGB", resizing)
            compare_resizing(probe, folder, path, "L", resizing)
        compare_cmyk(probe, folder, path, decoding)
    probe.close()
    passed = [decoding.report("decode"), resizing.report("resize")]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
