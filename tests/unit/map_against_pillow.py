"""Promise: what the steps on pictures compute in bytes is what Pillow computes, bit for
bit; where a bound is stated, every value is within it. Method: photographs of Debian's
mate-backgrounds go through map_probe and through Pillow, with the same parameters (ranges
of one value, probability 1); every value is compared.

    map_against_pillow.py PROBE [--pictures FOLDER]
    map_against_pillow.py --write-golden

The second writes map_golden.txt, Pillow's results for map_golden_test.cc.

Fails, and does not skip, without python3-pil, python3-numpy or mate-backgrounds
(packages.txt lists them).
"""

import argparse
import io
import json
import math
import pathlib
import subprocess
import sys
import tempfile

import numpy
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

PICTURES = "/usr/share/backgrounds/mate"
NAMES = ["nature/FreshFlower.jpg", "abstract/Elephants.jpg"]
SIZE = (160, 120)


class Probe:
    """map_probe on arrays."""

    def __init__(self, program, folder):
        self.folder = pathlib.Path(folder)
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)

    def run(self, steps, **arrays):
        """The features of the row: arrays, or the error's text. A value that is bytes
        is a picture file."""
        features = []
        for name, value in arrays.items():
            file = self.folder / name
            if isinstance(value, bytes):
                file.write_bytes(value)
                features.append({"name": name, "dtype": "uint8", "shape": [],
                                 "encoded": True, "file": str(file)})
                continue
            file.write_bytes(value.tobytes())
            features.append({"name": name, "dtype": str(value.dtype),
                             "shape": list(value.shape), "file": str(file)})
        out = self.folder / "out"
        request = {"map": steps, "features": features, "out": str(out)}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        answer = json.loads(self.process.stdout.readline())
        if "error" in answer:
            return answer["error"]
        data, found = out.read_bytes(), {}
        for feature in answer["features"]:
            dtype = numpy.dtype(feature["dtype"])
            count = int(numpy.prod(feature["shape"]))
            found[feature["name"]] = numpy.frombuffer(data, dtype, count).reshape(
                feature["shape"])
            data = data[count * dtype.itemsize:]
        return found

    def close(self):
        self.process.stdin.close()
        assert self.process.wait() == 0, "the probe failed"


class Comparison:
    def __init__(self, probe):
        self.probe = probe
        self.cases = 0
        self.failures = []

    def compare(self, what, steps, picture, pillows, allowed=0):
        """picture: an Image or an array; pillows: Pillow's result."""
        found = self.probe.run(steps, image=numpy.asarray(picture))
        self.check(what, found, numpy.asarray(pillows), allowed)

    def check(self, what, found, pillows, allowed=0):
        self.cases += 1
        if isinstance(found, str):
            self.failures.append(f"{what}: {found}")
            return
        if found["image"].shape != pillows.shape:
            self.failures.append(
                f"{what}: has {found['image'].shape}, Pillow's {pillows.shape}")
            return
        difference = numpy.abs(found["image"].astype(numpy.int64) - pillows)
        if difference.max() > allowed:
            self.failures.append(
                f"{what}: differs by up to {difference.max()} (allowed {allowed}) in "
                f"{numpy.count_nonzero(difference)} of {difference.size}")


class Golden:
    """Takes the exact cases of a Comparison for map_golden.txt."""

    def __init__(self):
        self.lines = []
        self.probe = self

    def run(self, steps, **arrays):
        return ""

    def check(self, *what):
        """Cases of a form that the C++ test has not."""

    def compare(self, what, steps, picture, pillows, allowed=0):
        if allowed == 0:
            shape = list(numpy.asarray(picture).shape)
            values = numpy.ascontiguousarray(pillows, numpy.uint8)
            digest = 0xcbf29ce484222325  # FNV-1a
            for value in values.tobytes():
                digest = (digest ^ value) * 0x100000001b3 % 2 ** 64
            self.lines += [json.dumps({"shape": shape, "map": steps}),
                           json.dumps({"shape": list(values.shape),
                                       "fnv": f"{digest:016x}"})]


def patterned(channels):
    """As map_golden_test.cc makes it."""
    y, x, c = numpy.ogrid[0:SIZE[1], 0:SIZE[0], 0:channels]
    values = 3 * x + 5 * y + 85 * c + x * y // 16 + (x // 8 + y // 8) % 2 * 40
    values = (values % 256).astype(numpy.uint8)
    return Image.fromarray(values if channels == 3 else values[:, :, 0])


def write_golden():
    golden = Golden()
    for channels in (3, 1):
        picture = patterned(channels)
        compare_values(golden, "", picture)
        compare_runs(golden, "", picture)
        compare_moves(golden, "", picture)
        compare_sizes(golden, "", picture)
    path = pathlib.Path(__file__).with_name("map_golden.txt")
    path.write_text("\n".join(golden.lines) + "\n")


def hue_turned(picture, turns):
    """As torchvision does it with Pillow's."""
    if picture.mode == "L":
        return picture
    hue, saturation, value = picture.convert("HSV").split()
    moved = numpy.array(hue)
    moved += numpy.array(turns * 255).astype(numpy.int32).astype(numpy.uint8)
    return Image.merge("HSV", (Image.fromarray(moved), saturation, value)).convert("RGB")


def always(name, **keys):
    return [{name: {**keys, "probability": 1}}]


def compare_values(comparison, what, picture):
    def check(name, pillows, allowed=0, **keys):
        comparison.compare(f"{what} {name} {keys}", always(name, **keys), picture,
                           pillows, allowed)

    check("invert", ImageOps.invert(picture))
    check("equalize", ImageOps.equalize(picture))
    check("autocontrast", ImageOps.autocontrast(picture))
    for threshold in (0, 1, 128, 200, 256):
        check("solarize", ImageOps.solarize(picture, threshold), threshold=threshold)
    for bits in (1, 2, 4, 7, 8):
        check("posterize", ImageOps.posterize(picture, bits), bits=bits)
    check("grayscale", picture.convert("L").convert(picture.mode))
    for factor in (0, 0.1, 0.5, 0.9, 1.1, 1.7, 4):
        def enhanced(enhancer):
            return enhancer(picture).enhance(factor)

        check("color_jitter", enhanced(ImageEnhance.Brightness),
              brightness=[factor, factor])
        check("color_jitter", enhanced(ImageEnhance.Contrast), contrast=[factor, factor])
        check("color_jitter", enhanced(ImageEnhance.Color), saturation=[factor, factor])
        check("sharpness", enhanced(ImageEnhance.Sharpness), factor=factor)
    for turns in (-0.5, -0.2, 0.01, 0.1, 0.37, 0.5):
        check("color_jitter", hue_turned(picture, turns), hue=[turns, turns])


def compare_runs(comparison, what, picture):
    """Of several steps that share their table."""
    steps = (always("posterize", bits=5) + always("equalize") + always("invert")
             + always("color_jitter", contrast=[1.4, 1.4]) + always("autocontrast"))
    pillows = ImageOps.invert(ImageOps.equalize(ImageOps.posterize(picture, 5)))
    pillows = ImageOps.autocontrast(ImageEnhance.Contrast(pillows).enhance(1.4))
    comparison.compare(f"{what} tables", steps, picture, pillows)
    steps += (always("sharpness", factor=1.8) + always("solarize", threshold=100)
              + always("color_jitter", saturation=[0.3, 0.3]))
    pillows = ImageEnhance.Sharpness(pillows).enhance(1.8)
    pillows = ImageEnhance.Color(ImageOps.solarize(pillows, 100)).enhance(0.3)
    comparison.compare(f"{what} tables and pixels", steps, picture, pillows)


NEAREST, BILINEAR, BICUBIC, LANCZOS = (
    Image.Resampling.NEAREST, Image.Resampling.BILINEAR, Image.Resampling.BICUBIC,
    Image.Resampling.LANCZOS)


def affine_matrix(center, degrees, translate, scale, shear):
    """torchvision's _get_inverse_affine_matrix."""
    turn, sx, sy = (math.radians(v) for v in (degrees, *shear))
    a = math.cos(turn - sy) / math.cos(sy)
    b = -math.cos(turn - sy) * math.tan(sx) / math.cos(sy) - math.sin(turn)
    c = math.sin(turn - sy) / math.cos(sy)
    d = -math.sin(turn - sy) * math.tan(sx) / math.cos(sy) + math.cos(turn)
    m = [d / scale, -b / scale, 0, -c / scale, a / scale, 0]
    x, y = -center[0] - translate[0], -center[1] - translate[1]
    m[2] += m[0] * x + m[1] * y + center[0]
    m[5] += m[3] * x + m[4] * y + center[1]
    return m


def perspective_matrix(size, corners):
    right, bottom = size[0] - 1, size[1] - 1
    rows, to = [], [(0, 0), (right, 0), (right, bottom), (0, bottom)]
    for (x, y), (u, v) in zip(corners, to):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
    solved = numpy.linalg.solve(numpy.array(rows, float), numpy.array(to, float).ravel())
    return [float(v) for v in solved.astype(numpy.float32)]


def compare_moves(comparison, what, picture):
    width, height = picture.size
    gray = picture.mode == "L"
    fill = 90 if gray else (10, 200, 77)
    given = fill if gray else list(fill)

    # Bilinear places are rounded to 2^-11 of a pixel.
    for mode, name, allowed in ((NEAREST, "nearest", 0), (BILINEAR, "bilinear", 1),
                                (BICUBIC, "bicubic", 0)):
        def check(step, pillows, **keys):
            keys = {"interpolation": name, "fill": given, **keys}
            comparison.compare(f"{what} {step} {keys}", always(step, **keys), picture,
                               pillows, allowed)

        for degrees in (0, 7.5, -33, 90, 180, 270, 400):
            check("rotate", picture.rotate(degrees, mode, fillcolor=fill),
                  degrees=[degrees, degrees])
        check("rotate", picture.rotate(20, mode, center=(3, 50.5), fillcolor=fill),
              degrees=[20, 20], center=[3, 50.5])
        for degrees, translate, scale, shear in (
                (0, (0.1, -0.25), 1, (0, 0)), (10, (0, 0), 0.7, (0, 0)),
                (0, (0, 0), 1.3, (0, 0)), (-25, (0.2, 0.1), 1.2, (12, -8)),
                (3, (0, 0), 1, (30, 0))):
            pixels = (round(translate[0] * width), round(translate[1] * height))
            matrix = affine_matrix((width / 2, height / 2), degrees, pixels, scale, shear)
            check("affine",
                  picture.transform(picture.size, Image.Transform.AFFINE, matrix, mode,
                                    fillcolor=fill),
                  degrees=[degrees, degrees], translate=[[t, t] for t in translate],
                  scale=[scale, scale], shear=[[s, s] for s in shear])
        corners = [(5, 9), (width - 20, 0), (width - 1, height - 9), (11, height - 3)]
        check("perspective",
              picture.transform(picture.size, Image.Transform.PERSPECTIVE,
                                perspective_matrix(picture.size, corners), mode,
                                fillcolor=fill),
              corners=[v for corner in corners for v in corner])


def compare_sizes(comparison, what, picture):
    """Of resize, crop and pad, also as crop of decode_image."""
    width, height = picture.size
    array = numpy.asarray(picture)
    gray = picture.mode == "L"
    fill, given = (90, 90) if gray else ((10, 200, 77), [10, 200, 77])
    png = io.BytesIO()
    picture.save(png, "png")

    def check(steps, pillows, allowed=0):
        comparison.compare(f"{what} {steps}", steps, picture, pillows, allowed)

    def check_crop(crop, size, pillows, **keys):
        check([{"crop": {**crop, "size": size, **keys}}], pillows)
        steps = [{"decode_image": {"crop": crop, "size": size, "exact": True,
                                   "channels": "gray" if gray else "rgb", **keys}}]
        found = comparison.probe.run(steps, image=png.getvalue())
        comparison.check(f"{what} {steps}", found, numpy.asarray(pillows).reshape(
            numpy.asarray(pillows).shape[:2] + (-1,)))

    for mode, name in ((NEAREST, "nearest"), (BILINEAR, "bilinear"),
                       (BICUBIC, "bicubic"), (LANCZOS, "lanczos")):
        for size in ((64, 48), (300, 31), (width, 20), (17, height), (1, 1)):
            check([{"resize": {"size": list(size[::-1]), "interpolation": name}}],
                  picture.resize(size, mode))
        size = tuple(37 if side == min(picture.size) else int(37 * side / min(picture.size))
                     for side in picture.size)
        check([{"resize": {"shorter": 37, "interpolation": name}}],
              picture.resize(size, mode))
        for bound in ((50, 50), (100, 13), (9, 400), (1000, 1000)):
            small = picture.copy()
            small.thumbnail(bound, mode, reducing_gap=None)
            check([{"resize": {"within": list(bound[::-1]), "interpolation": name}}],
                  small)
        if name == "nearest":
            continue
        part = picture.crop((20, 10, 90, 70)).resize((40, 50), mode)
        check_crop({"at": {"left": 20, "top": 10, "width": 70, "height": 60}}, [50, 40],
                   part, interpolation=name)
        # Resize(60), CenterCrop((50, 44)).
        scaled = picture.resize(
            tuple(60 if side == min(picture.size) else int(60 * side / min(picture.size))
                  for side in picture.size), mode)
        left, top = round((scaled.width - 44) / 2), round((scaled.height - 50) / 2)
        check_crop({"center_pixels": {"shorter": 60}}, [50, 44],
                   scaled.crop((left, top, left + 44, top + 50)), interpolation=name)
        for size in ((90, 90), (200, 50), (33, 200)):
            check_crop({"fit": {"fill": given}}, list(size[::-1]),
                       ImageOps.pad(picture, size, mode, color=fill),
                       interpolation=name)
    # Larger than the picture: torchvision pads half of the difference, rounded down.
    size = (width + 13, height + 6)
    padded = Image.new(picture.mode, size, fill)
    padded.paste(picture, (6, 3))
    check_crop({"center_pixels": {"fill": given}}, list(size[::-1]), padded)
    inner = picture.crop((10, 5, width - 11, height - 5))
    check_crop({"center_pixels": {}}, [inner.height, inner.width], inner)
    amounts = [(3, 7), (2, 9)] + ([] if gray else [(0, 0)])
    for mode, names in (("constant", {"constant_values": 0}), ("edge", {}),
                        ("reflect", {}), ("symmetric", {})):
        pillows = numpy.pad(array, amounts, mode, **names)
        check([{"pad": {"by": [2, 3, 9, 7], "mode": mode}}], pillows)
        wide = [(200, 200), (200, 200)] + ([] if gray else [(0, 0)])
        check([{"pad": {"by": 200, "mode": mode}}], numpy.pad(array, wide, mode, **names))
    check([{"pad": {"size": [height + 5, width + 4], "fill": given}}],
          numpy.asarray(padded)[3 - 2:3 - 2 + height + 5, 6 - 2:6 - 2 + width + 4])
    check([{"flip": {"horizontal": 0, "vertical": 1}}], ImageOps.flip(picture))
    check([{"flip": {"horizontal": 1, "vertical": 1}}],
          ImageOps.mirror(ImageOps.flip(picture)))


def compare_masks(comparison, picture):
    """Masks of several dtypes move with their picture, by the nearest pixel."""
    width, height = picture.size
    labels = numpy.asarray(picture.convert("L")).astype(numpy.int32) * 3
    steps = [{"rotate": {"degrees": [-17, -17], "mask": "mask", "mask_fill": 255}},
             {"color_jitter": {"brightness": 0.5}},
             {"affine": {"scale": [1.2, 1.2], "mask": "mask", "mask_fill": 255}},
             {"pad": {"by": 5, "mask": "mask", "mask_fill": 7}}]
    as_image = Image.fromarray(labels)
    turned = as_image.rotate(-17, NEAREST, fillcolor=255)
    turned = turned.transform(
        turned.size, Image.Transform.AFFINE,
        affine_matrix((width / 2, height / 2), 0, (0, 0), 1.2, (0, 0)), NEAREST,
        fillcolor=255)
    pillows = numpy.pad(numpy.asarray(turned), 5, constant_values=7)
    for dtype in (numpy.int32, numpy.int64, numpy.uint8, numpy.float32, numpy.int16):
        found = comparison.probe.run(steps, image=numpy.asarray(picture),
                                     mask=labels.astype(dtype))
        found = found if isinstance(found, str) else {"image": found["mask"]}
        wanted = pillows.astype(dtype)
        comparison.check(f"mask {dtype.__name__}", found, wanted)


def all_colours():
    """2^18 of the 2^24."""
    values = numpy.arange(2 ** 18, dtype=numpy.int64)
    channels = [(values >> shift & 63) * 4 + (values * 7 + shift) % 4
                for shift in (0, 6, 12)]
    return Image.fromarray(
        numpy.stack(channels, 1).reshape(512, 512, 3).astype(numpy.uint8))


def pictures(folder):
    for name in NAMES:
        photograph = Image.open(pathlib.Path(folder) / name).convert("RGB").resize(SIZE)
        yield name, photograph
        yield f"{name} gray", photograph.convert("L")
    yield "all colours", all_colours()
    yield "one colour", Image.new("RGB", (7, 5), (3, 200, 120))
    yield "two pixels", Image.fromarray(
        numpy.array([[[0, 1, 2], [253, 254, 255]]], numpy.uint8))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("probe", nargs="?", help="the built map_probe")
    parser.add_argument("--pictures", default=PICTURES)
    parser.add_argument("--write-golden", action="store_true")
    arguments = parser.parse_args()
    if arguments.write_golden:
        return write_golden()
    with tempfile.TemporaryDirectory() as folder:
        comparison = Comparison(Probe(arguments.probe, folder))
        for what, picture in pictures(arguments.pictures):
            compare_values(comparison, what, picture)
            compare_runs(comparison, what, picture)
            if picture.size == SIZE:
                compare_moves(comparison, what, picture)
                compare_sizes(comparison, what, picture)
        compare_masks(comparison, next(pictures(arguments.pictures))[1])
        comparison.probe.close()
    print(f"{comparison.cases} cases, {len(comparison.failures)} failures")
    for failure in comparison.failures:
        print("  " + failure)
    return 1 if comparison.failures else 0


if __name__ == "__main__":
    sys.exit(main())
