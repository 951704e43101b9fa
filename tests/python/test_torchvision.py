"""Promise: steps on pictures have the values of torchvision.transforms.v2 on Pillow's
pictures, draws included: bit for bit, or within the bound that the test and
broker/transform/OPERATIONS.md state. Method: torchvision's own transforms run, and where
they ask PyTorch for a random number they get the one that the headers of broker/transform
document. The pictures are waves with noise, photographs (Debian's mate-backgrounds), and
gray ones (dataset-fashion-mnist).

Fails, and does not skip, without these two packages (packages.txt lists them)."""

import contextlib
import gzip
import itertools
import json
import math
import pathlib
import re
import runpy
from unittest import mock

import numpy as np
import penstock
import pytest
from PIL import Image

from test_pictures import SEED, uniform

torch = pytest.importorskip("torch")
from torch import library as operators

# PyPI's torchvision is of the build with CUDA. Its transforms work beside any PyTorch,
# once somebody has declared the operators that it cannot load.
OPERATORS = operators.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, _name):
        OPERATORS.define(_name + "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
pytest.importorskip("torchvision")
from torchvision import tv_tensors
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

torch.set_num_threads(1)  # the pictures are small, and the broker computes beside it

COUNT = 32
PHOTOGRAPHS = pathlib.Path("/usr/share/backgrounds/mate/nature")
CLOTHES = "/usr/share/datasets/fashion-mnist/t10k-images-idx3-ubyte.gz"
MODES = {"nearest": InterpolationMode.NEAREST, "bilinear": InterpolationMode.BILINEAR,
         "bicubic": InterpolationMode.BICUBIC, "lanczos": InterpolationMode.LANCZOS}


def waves():
    """Smooth, with noise, and not square."""
    draw = np.random.default_rng(2)
    y, x = np.mgrid[0:61, 0:80]
    found = []
    for i in range(COUNT):
        channels = [110 + 100 * np.sin(x / (7 + c + i % 5) + y / (11 - c)) for c in range(3)]
        noise = draw.integers(-20, 21, (*x.shape, 3))
        found.append(np.clip(np.stack(channels, 2) + noise, 0, 255).astype(np.uint8))
    return np.stack(found)


def photographs():
    """Each as a whole, made small, and its middle as it is."""
    found = []
    for path in sorted(PHOTOGRAPHS.glob("*.jpg")):
        whole = Image.open(path).convert("RGB")
        found += [whole.resize((128, 96)), F.center_crop(whole, [96, 128])]
    assert len(found) >= 20, "wanted the photographs of Debian's mate-backgrounds"
    return np.stack(found[:len(found) // 4 * 4])


def clothes():
    """Gray: [n, 28, 28]."""
    with gzip.open(CLOTHES) as file:
        values = file.read(16 + COUNT * 28 * 28)
    return np.frombuffer(values, np.uint8, offset=16).reshape(COUNT, 28, 28)


@pytest.fixture(scope="module", params=[waves, photographs, clothes])
def pictures(request):
    return request.param()


COLOURED = pytest.mark.parametrize("pictures", [waves, photographs], indirect=True)


def fill_of(pictures, colour):
    return colour if pictures.ndim == 4 else colour[0]


@pytest.fixture
def rows_of(attach, tmp_path):
    """The pictures after these steps; picture i is sample i of epoch 0."""
    def run(steps, pictures):
        np.save(tmp_path / "pictures.npy", pictures)
        dataset = penstock.Dataset.npy({"image": tmp_path / "pictures.npy"}).map(*steps)
        with attach(dataset.batch(len(pictures)).seed(SEED)) as reader:
            return np.array(reader.next()["image"])

    return run


# ---- torchvision with given random numbers


class Draws:
    def __init__(self, sample, op=0):
        self.sample, self.op = sample, op

    def number(self, draw):
        return uniform(SEED, 0, self.sample, self.op, draw)

    def choice(self, draw, count):
        return int(self.number(draw) * count)


@contextlib.contextmanager
def random_numbers(number):
    """PyTorch's random functions scale number(the function's name), from 0 to below 1."""
    def randint(*bounds, low=0, high=None, size=None):
        bounds = [bound for bound in bounds if isinstance(bound, int)]
        if len(bounds) == 2:
            low, high = bounds
        elif bounds:
            high = bounds[0]
        return torch.tensor(low + int(number("randint") * (high - low)))

    def rand(*size):
        return torch.tensor(number("rand"), dtype=torch.float64)

    def randperm(count):
        """Fisher and Yates, as in color.h."""
        order = list(range(count))
        for i in range(count - 1, 0, -1):
            j = int(number("randperm") * (i + 1))
            order[i], order[j] = order[j], order[i]
        return torch.tensor(order)

    def uniform_(_, low=0, high=1):
        low, high = float(low), float(high)
        return torch.tensor([low + number("uniform_") * (high - low)], dtype=torch.float64)

    with mock.patch.multiple(torch, randint=randint, rand=rand, randperm=randperm), \
            mock.patch.object(torch.Tensor, "uniform_", uniform_):
        yield


def one_by_one(draws, which):
    which = iter(which)
    return lambda function: draws.number(next(which))


def in_order(first=0):
    """torchvision's numbers are this draw and those after it."""
    return lambda draws: one_by_one(draws, itertools.count(first))


def in_tries(first):
    """Each try has four draws: two for a size, two for its place if it is taken."""
    def order(draws):
        sizes, places = itertools.count(), itertools.count(2)
        of_try = first

        def number(function):
            nonlocal of_try
            if function == "rand":
                return draws.number(0)
            if function == "randint":
                return draws.number(of_try + next(places))
            size = next(sizes)
            of_try = first + size // 2 * 4
            return draws.number(of_try + size % 2)

        return number

    return order


def differences(rows, pictures, transform, order):
    """What transform makes of each picture with the numbers order(its draws)."""
    found = []
    for i, (row, picture) in enumerate(zip(rows, pictures)):
        with random_numbers(order(Draws(i))):
            wanted = np.asarray(transform(Image.fromarray(picture)))
        assert row.shape == wanted.shape
        found.append(np.abs(row.astype(int) - wanted))
    return np.stack(found)


def compare(rows_of, pictures, step, transform, order=in_order(), allowed=0, share=1):
    """No value is more than `allowed` off, and no more than this share of them is off."""
    off = differences(rows_of([step], pictures), pictures, transform, order)
    worst = off.reshape(len(off), -1).max(1)
    assert worst.max() <= allowed, f"of each sample: {worst.tolist()}"
    assert np.mean(off > 0) <= share


# ---- Pillow in the arithmetic that OPERATIONS.md states


def rounded_places():
    """Pillow's Image.transform, but that a bilinear place is rounded to 2^-11 of a pixel."""
    pillows = Image.Image.transform

    def transform(picture, size, method, data=None, resample=0, fill=1, fillcolor=None):
        if resample != Image.Resampling.BILINEAR:
            return pillows(picture, size, method, data, resample, fill, fillcolor)
        a = [*data, 0, 0][:8]
        width, height = size
        y, x = np.mgrid[0:height, 0:width] + 0.5
        w = a[6] * x + a[7] * y + 1
        x, y = (a[0] * x + a[1] * y + a[2]) / w, (a[3] * x + a[4] * y + a[5]) / w
        inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
        x, y = np.where(inside, x, 0.5) - 0.5, np.where(inside, y, 0.5) - 0.5
        x0, y0 = np.floor(x).astype(int), np.floor(y).astype(int)
        values = np.asarray(picture).astype(int).reshape(height, width, -1)
        dx, dy = ((2048 * (v - v0)).astype(int)[:, :, None] for v, v0 in ((x, x0), (y, y0)))

        def at(row, column):
            return values[row.clip(0, height - 1), column.clip(0, width - 1)]

        above = at(y0, x0) * (2048 - dx) + at(y0, x0 + 1) * dx
        below = at(y0 + 1, x0) * (2048 - dx) + at(y0 + 1, x0 + 1) * dx
        mixed = (above * (2048 - dy) + below * dy) >> 22
        mixed[~inside] = 0 if fillcolor is None else fillcolor
        return Image.fromarray(mixed.astype(np.uint8).reshape(np.asarray(picture).shape))

    return mock.patch.object(Image.Image, "transform", transform)


def rows_first():
    """Image.resize of every Pillow before 13."""
    pillows = Image.Image.resize

    def resize(picture, size, resample=None, box=None, reducing_gap=None):
        assert box is None and reducing_gap is None
        if resample == Image.Resampling.NEAREST:
            return pillows(picture, size, resample)
        return pillows(pillows(picture, (size[0], picture.height), resample), size, resample)

    return mock.patch.object(Image.Image, "resize", resize)


# ---- policies


def rand_augment(pictures, operations=2, magnitude=9, bins=31, interpolation="nearest",
                 fill=None):
    """Penstock's step, torchvision's transform, the order of its numbers."""
    fill = fill and fill_of(pictures, fill)
    policy = v2.RandAugment(operations, magnitude, bins, MODES[interpolation], fill)
    space = list(policy._AUGMENTATION_SPACE.values())

    def which(draws):
        for i in range(operations):
            yield 2 * i
            _, signed = space[draws.choice(2 * i, len(space))]
            yield from [2 * i + 1] * signed

    return (penstock.rand_augment(operations, magnitude, bins, interpolation, fill), policy,
            lambda draws: one_by_one(draws, which(draws)))


def trivial_augment(pictures, bins=31, interpolation="nearest", fill=None):
    fill = fill and fill_of(pictures, fill)
    policy = v2.TrivialAugmentWide(bins, MODES[interpolation], fill)
    space = list(policy._AUGMENTATION_SPACE.values())

    def which(draws):
        magnitudes, signed = space[draws.choice(0, len(space))]
        return [0] + [1] * (magnitudes(2, 1, 1) is not None) + [2] * signed

    return (penstock.trivial_augment(bins, interpolation, fill), policy,
            lambda draws: one_by_one(draws, which(draws)))


class AugMix(v2.AugMix):
    """Its weights are those of policies.h, its chains of Pillow's pictures, too."""

    of_pillows_pictures = True

    def order(self, draws):
        self.draws, self.variate = draws, itertools.count()
        return one_by_one(draws, self.which(draws))

    def which(self, draws):
        space = list((self._AUGMENTATION_SPACE if self.all_ops
                      else self._PARTIAL_AUGMENTATION_SPACE).values())
        for i in range(self.mixture_width):
            chain, depth = 4096 + 64 * i, self.chain_depth
            if depth < 1:
                yield chain
                depth = 1 + draws.choice(chain, 3)
            for draw in range(chain + 1, chain + 1 + 3 * depth, 3):
                yield draw
                magnitudes, signed = space[draws.choice(draw, len(space))]
                yield from [draw + 1] * (magnitudes(2, 1, 1) is not None)
                yield from [draw + 2] * signed

    def _sample_dirichlet(self, parameters):
        found = [gamma(self.alpha, self.draws, next(self.variate))
                 for _ in range(parameters.shape[-1])]
        return torch.tensor([found], dtype=torch.float64).div_(sum(found)).float()

    def _apply_image_or_video_transform(self, image, name, *arguments, **options):
        apply = super()._apply_image_or_video_transform
        # Pillow 13 refuses to keep 0 bits.
        if name == "Posterize" or not self.of_pillows_pictures:
            return apply(image, name, *arguments, **options)
        picture = F.to_pil_image(image[0])
        return F.pil_to_tensor(apply(picture, name, *arguments, **options))[None]


def gamma(alpha, draws, g):
    shape = alpha + 1 if alpha < 1 else alpha
    d = shape - 1 / 3
    c = 1 / math.sqrt(9 * d)
    for t in range(21):
        first = 64 * g + 3 * t
        normal = (math.sqrt(-2 * math.log(1 - draws.number(first)))
                  * math.cos(2 * math.pi * draws.number(first + 1)))
        v = (1 + c * normal) ** 3
        if v > 0 and (math.log(1 - draws.number(first + 2))
                      < 0.5 * normal ** 2 + d - d * v + d * math.log(v)):
            break
    scale = (1 - draws.number(64 * g + 63)) ** (1 / alpha) if alpha < 1 else 1
    return d * v * scale


def aug_mix(pictures, severity=3, width=3, depth=0, alpha=1.0, all_operations=True,
            interpolation="bilinear", fill=None):
    fill = fill and fill_of(pictures, fill)
    policy = AugMix(severity, width, depth or -1, alpha, all_operations,
                    MODES[interpolation], fill)
    return (penstock.aug_mix(severity, width, depth, alpha, all_operations, interpolation,
                             fill), policy, policy.order)


FILL = [124, 116, 104]


@pytest.mark.parametrize("options", [
    {}, {"magnitude": 20, "fill": FILL}, {"magnitude": 9, "bins": 10, "operations": 3},
    {"magnitude": 2, "bins": 4, "operations": 1},
    {"interpolation": "bicubic", "operations": 4},
    {"interpolation": "bilinear", "fill": FILL},
    {"interpolation": "bilinear", "magnitude": 14, "bins": 15, "operations": 3}], ids=str)
def test_rand_augment(rows_of, pictures, options):
    with rounded_places():
        compare(rows_of, pictures, *rand_augment(pictures, **options))


@pytest.mark.parametrize("options", [
    {}, {"bins": 5, "fill": FILL}, {"interpolation": "bicubic", "bins": 100},
    {"interpolation": "bilinear"}], ids=str)
def test_trivial_augment(rows_of, pictures, options):
    with rounded_places():
        compare(rows_of, pictures, *trivial_augment(pictures, **options))


@pytest.mark.parametrize("options", [
    {}, {"interpolation": "nearest"}, {"alpha": 0.4, "all_operations": False},
    {"severity": 10, "width": 1, "depth": 2, "interpolation": "bicubic", "fill": FILL},
    {"severity": 1, "width": 5, "depth": 4, "interpolation": "nearest"},
    {"severity": 7, "width": 2, "depth": 1, "alpha": 3.0}], ids=str)
def test_aug_mix(rows_of, pictures, options):
    # The sum is in single precision, and truncated.
    with rounded_places():
        compare(rows_of, pictures, *aug_mix(pictures, **options), allowed=1, share=0.03)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
def test_aug_mix_beside_torchvision_s_tensors(rows_of, pictures, interpolation):
    """As torchvision itself has it: even of Pillow's pictures its chains are of tensors."""
    step, transform, order = aug_mix(pictures, interpolation=interpolation)
    transform.of_pillows_pictures = False
    off = differences(rows_of([step], pictures), pictures, transform, order)
    assert np.mean(off > 0) < 0.2
    assert np.mean(off > 1) < 0.02


@pytest.mark.parametrize("policy", [rand_augment, trivial_augment, aug_mix])
def test_bilinear_policies_beside_pillows_places(rows_of, pictures, policy):
    """A value that is 1 off may be one that equalize or solarize moves far."""
    step, transform, order = policy(pictures, interpolation="bilinear")
    off = differences(rows_of([step], pictures), pictures, transform, order)
    assert np.mean(off > 0) < 0.01
    assert np.mean(off > 1) < 0.0005


# ---- values


def test_color_jitter(rows_of, pictures):
    jitter = v2.ColorJitter(0.4, (0.5, 2), (0.3, 1.7), 0.2)
    compare(rows_of, pictures, penstock.color_jitter(
        0.4, [0.5, 2], [0.3, 1.7], 0.2, probability=0.8), v2.RandomApply([jitter], 0.8))


@pytest.mark.parametrize("step,transform", [
    (penstock.grayscale(0.4), v2.RandomGrayscale(0.4)),
    (penstock.sharpness(2), v2.RandomAdjustSharpness(2)),
    (penstock.sharpness(0.3, 0.9), v2.RandomAdjustSharpness(0.3, 0.9)),
    (penstock.solarize(), v2.RandomSolarize(128)),
    (penstock.solarize(70.5, 0.7), v2.RandomSolarize(70.5, 0.7)),
    (penstock.posterize(3), v2.RandomPosterize(3)),
    (penstock.equalize(), v2.RandomEqualize()),
    (penstock.autocontrast(), v2.RandomAutocontrast()),
    (penstock.invert(), v2.RandomInvert())], ids=str)
def test_values(rows_of, pictures, step, transform):
    compare(rows_of, pictures, step, transform)


@pytest.mark.parametrize("kernel,sigma", [(3, (0.1, 2)), (9, (0.1, 2)), (23, (0.1, 2)),
                                          (5, (3, 3.5))])
def test_blur(rows_of, pictures, kernel, sigma):
    compare(rows_of, pictures, penstock.blur(kernel, sigma), v2.GaussianBlur(kernel, sigma),
            in_order(1), allowed=1, share=1e-4)


# ---- places


@pytest.mark.parametrize("center", [None, [3, 20.5]])
@pytest.mark.parametrize("name,allowed", [("nearest", 0), ("bilinear", 1), ("bicubic", 0)])
def test_moves(rows_of, pictures, name, allowed, center):
    fill = fill_of(pictures, [9, 8, 7])
    theirs = {"interpolation": MODES[name], "fill": fill, "center": center}
    ours = {"interpolation": name, "fill": fill, "center": center}
    compare(rows_of, pictures, penstock.rotate(40, **ours),
            v2.RandomRotation(40, **theirs), in_order(1), allowed, share=0.01)
    compare(rows_of, pictures, penstock.affine(
        20, [0.1, 0.3], [0.8, 1.3], [10, [0, 5]], **ours), v2.RandomAffine(
            20, (0.1, 0.3), (0.8, 1.3), [-10, 10, 0, 5], **theirs), in_order(1), allowed,
        share=0.01)


@pytest.mark.parametrize("distortion", [0.25, 0.8])
@pytest.mark.parametrize("name,allowed", [("nearest", 0), ("bilinear", 1), ("bicubic", 0)])
def test_perspective(rows_of, pictures, name, allowed, distortion):
    fill = fill_of(pictures, [9, 8, 7])
    compare(rows_of, pictures, penstock.perspective(distortion, 0.9, name, fill),
            v2.RandomPerspective(distortion, 0.9, MODES[name], fill), allowed=allowed,
            share=0.01)


def test_flip(rows_of, pictures):
    compare(rows_of, pictures, penstock.flip(0.4, vertical=0.7), v2.Compose(
        [v2.RandomHorizontalFlip(0.4), v2.RandomVerticalFlip(0.7)]))


PAD_MODES = ["constant", "edge", "reflect", "symmetric"]


@pytest.mark.parametrize("mode", PAD_MODES)
def test_padding(rows_of, pictures, mode):
    height, width = pictures.shape[1:3]
    fill = fill_of(pictures, [9, 8, 7])
    compare(rows_of, pictures, penstock.pad([5, 6, 7, 8], mode=mode, fill=fill),
            v2.Pad([5, 6, 7, 8], fill, mode))
    compare(rows_of, pictures, penstock.crop(penstock.random_pixels(
        [5, 6, 7, 8], mode=mode, fill=fill), [height - 1, width - 10]), v2.RandomCrop(
            (height - 1, width - 10), [5, 6, 7, 8], False, fill, mode), in_order(1))
    # Smaller than the crop.
    compare(rows_of, pictures, penstock.crop(penstock.random_pixels(
        mode=mode, fill=fill), [height + 7, width - 10]), v2.RandomCrop(
            (height + 7, width - 10), None, True, fill, mode), in_order(1))


@pytest.mark.parametrize("size", [[24, 24], [20, 160], [150, 20]])
@pytest.mark.parametrize("name", MODES)
def test_resizing(rows_of, pictures, name, size):
    with rows_first():
        compare(rows_of, pictures, penstock.resize(size, interpolation=name),
                v2.Resize(size, MODES[name]))
        for options in ({}, {"scale": [0.3, 1], "ratio": [1.2, 3]},
                        {"scale": [1, 1], "ratio": [3, 4]}):  # the fallback, of ten tries
            compare(rows_of, pictures, penstock.crop(
                penstock.random_resized(**options), size, interpolation=name),
                v2.RandomResizedCrop(size, interpolation=MODES[name], **options),
                in_tries(0))


@pytest.mark.parametrize("name", ["bilinear", "bicubic", "lanczos"])
def test_resizing_to_a_shorter_side(rows_of, pictures, name):
    with rows_first():
        compare(rows_of, pictures, penstock.resize(shorter=37, interpolation=name),
                v2.Resize(37, MODES[name]))
        compare(rows_of, pictures, penstock.crop(
            penstock.random_pixels(shorter=[40, 70]), 38, interpolation=name),
            v2.Compose([v2.RandomResize(40, 71, MODES[name]), v2.RandomCrop(38)]))
        compare(rows_of, pictures, penstock.crop(
            penstock.center_pixels(shorter=50), [40, 90], interpolation=name),
            v2.Compose([v2.Resize(50, MODES[name]), v2.CenterCrop((40, 90))]))


@pytest.mark.parametrize("name", ["bilinear", "bicubic", "lanczos"])
def test_resizing_beside_a_pillow_that_takes_columns_first(rows_of, pictures, name):
    """Pillow 13 does where that is less work, and rounds and limits values in between."""
    for step, transform, order in (
            (penstock.crop("random_resized", 24, interpolation=name),
             v2.RandomResizedCrop(24, interpolation=MODES[name]), in_tries(0)),
            (penstock.resize([20, 160], interpolation=name),
             v2.Resize([20, 160], MODES[name]), in_order())):
        off = differences(rows_of([step], pictures), pictures, transform, order)
        if name == "bilinear":
            assert off.max() <= 1
        elif pictures.ndim == 4:
            assert off.max() <= 10
            assert np.mean(off > 1) < 0.005
        else:  # all edges, on black
            assert off.max() <= 40
            assert np.mean(off > 1) < 0.05


# ---- boxes

ROOM = 6


def boxes_in(width, height, count, whole):
    """Some of each picture, some of which reach beyond it."""
    draw = np.random.default_rng(7)
    boxes = np.zeros((count, ROOM, 4), np.float32)
    lengths = draw.integers(0, ROOM + 1, count)
    for i, length in enumerate(lengths):
        sides = [width, height] * 2
        corners = draw.uniform(-0.1, 1.1, (length, 4)) * sides
        low, high = np.minimum(corners[:, :2], corners[:, 2:]), np.maximum(
            corners[:, :2], corners[:, 2:])
        corners = np.concatenate([low, high], 1)
        boxes[i, :length] = np.rint(corners) if whole else corners
    return boxes, lengths


@pytest.fixture
def box_rows(attach, tmp_path):
    """Boxes after these steps; picture i is sample i of epoch 0."""
    def run(steps, pictures, boxes, lengths):
        for name, values in (("image", pictures), ("boxes", boxes), ("boxes.length", lengths),
                             ("labels", np.arange(ROOM) * (np.arange(ROOM) < lengths[:, None])),
                             ("labels.length", lengths)):
            np.save(tmp_path / f"{name}.npy", values)
        dataset = penstock.Dataset.npy({name: tmp_path / f"{name}.npy" for name in (
            "image", "boxes", "boxes.length", "labels", "labels.length")}).map(*steps)
        with attach(dataset.batch(len(pictures)).seed(SEED)) as reader:
            batch = reader.next()
            return np.array(batch["boxes"]), batch.lengths("boxes").copy(), np.array(
                batch["labels"])

    return run


def their_boxes(picture, boxes, transform, numbers):
    with random_numbers(numbers):
        return transform(Image.fromarray(picture), tv_tensors.BoundingBoxes(
            torch.tensor(boxes), format="XYXY", canvas_size=picture.shape[:2]))[1].numpy()


def compare_boxes(box_rows, pictures, step, transform, order=in_order(), allowed=0.0):
    height, width = pictures.shape[1:3]
    for whole in (True, False):
        boxes, lengths = boxes_in(width, height, len(pictures), whole)
        rows, left, _ = box_rows([step], pictures, boxes, lengths)
        assert left.tolist() == lengths.tolist()
        for i, length in enumerate(lengths):
            wanted = their_boxes(pictures[i], boxes[i, :length], transform, order(Draws(i)))
            np.testing.assert_allclose(rows[i, :length], wanted, rtol=0, atol=allowed)
            assert not rows[i, length:].any()


ON_BOXES = {"boxes": "boxes"}


def test_boxes_are_flipped_padded_and_cropped(box_rows, pictures):
    height, width = pictures.shape[1:3]
    for step, transform, order in (
            (penstock.flip(0.4, vertical=0.7, **ON_BOXES), v2.Compose(
                [v2.RandomHorizontalFlip(0.4), v2.RandomVerticalFlip(0.7)]), in_order()),
            (penstock.pad([5, 6, 7, 8], **ON_BOXES), v2.Pad([5, 6, 7, 8]), in_order()),
            (penstock.crop("center_pixels", [20, 90], **ON_BOXES), v2.CenterCrop((20, 90)),
             in_order()),
            (penstock.crop(penstock.random_pixels([5, 6, 7, 8]), [height - 1, width - 10],
                           **ON_BOXES), v2.RandomCrop((height - 1, width - 10), [5, 6, 7, 8]),
             in_order(1))):
        # A sum with a float is rounded once here, and once a step there.
        compare_boxes(box_rows, pictures, step, transform, order, 2e-5)


def test_boxes_are_resized(box_rows, pictures):
    for step, transform, order in (
            (penstock.resize([50, 31], **ON_BOXES), v2.Resize([50, 31]), in_order()),
            (penstock.resize(shorter=37, **ON_BOXES), v2.Resize(37), in_order()),
            (penstock.crop(penstock.center_pixels(shorter=50), [40, 90], **ON_BOXES),
             v2.Compose([v2.Resize(50), v2.CenterCrop((40, 90))]), in_order()),
            (penstock.crop("random_resized", [24, 33], **ON_BOXES),
             v2.RandomResizedCrop([24, 33]), in_tries(0))):
        compare_boxes(box_rows, pictures, step, transform, order)


@pytest.mark.parametrize("center", [None, [3, 20.5]])
def test_boxes_are_turned(box_rows, pictures, center):
    """torchvision computes in float32, Penstock in double precision, rounded once."""
    compare_boxes(box_rows, pictures, penstock.rotate(40, center=center, **ON_BOXES),
                  v2.RandomRotation(40, center=center), in_order(1), 1e-4)
    compare_boxes(box_rows, pictures, penstock.affine(
        20, [0.1, 0.3], [0.8, 1.3], [10, [0, 5]], center=center, **ON_BOXES), v2.RandomAffine(
            20, (0.1, 0.3), (0.8, 1.3), [-10, 10, 0, 5], center=center), in_order(1), 1e-4)
    compare_boxes(box_rows, pictures, penstock.perspective(0.4, 0.9, **ON_BOXES),
                  v2.RandomPerspective(0.4, 0.9), in_order(), 1e-3)


@pytest.mark.parametrize("clamp", [True, False])
def test_sanitized_boxes(box_rows, pictures, clamp):
    height, width = pictures.shape[1:3]
    boxes, lengths = boxes_in(width, height, len(pictures), False)
    boxes[::3, 0, 2] = boxes[::3, 0, 0] + 2  # narrow
    boxes[1, 0] = np.nan
    boxes[np.arange(ROOM) >= lengths[:, None]] = 0
    rows, left, labels = box_rows([penstock.sanitize_boxes("labels", 4, 50, clamp)],
                                  pictures, boxes, lengths)
    transform = v2.SanitizeBoundingBoxes(4, 50)
    if clamp:
        transform = v2.Compose([v2.ClampBoundingBoxes(), transform])
    removed = 0
    for i, length in enumerate(lengths):
        wanted = transform({"boxes": tv_tensors.BoundingBoxes(
            torch.tensor(boxes[i, :length]), format="XYXY", canvas_size=(height, width)),
            "labels": torch.arange(length)})
        count = len(wanted["labels"])
        assert left[i] == count
        np.testing.assert_array_equal(rows[i, :count], wanted["boxes"].numpy())
        assert labels[i, :count].tolist() == wanted["labels"].tolist()
        assert not rows[i, count:].any() and not labels[i, count:].any()
        removed += length - count
    assert removed > 0


def test_converted_boxes(box_rows, pictures):
    height, width = pictures.shape[1:3]
    for start, end in itertools.permutations(("xyxy", "xywh", "cxcywh"), 2):
        boxes, lengths = boxes_in(width, height, len(pictures), False)
        rows, _, _ = box_rows([penstock.convert_boxes(start, end)], pictures, boxes, lengths)
        wanted = F.convert_bounding_box_format(
            torch.tensor(boxes.reshape(-1, 4)), old_format=start.upper(), new_format=end.upper())
        np.testing.assert_array_equal(rows, wanted.numpy().reshape(rows.shape))


def test_boxes_of_decoded_pictures(attach, tmp_path, pictures):
    height, width = pictures.shape[1:3]
    boxes, lengths = boxes_in(width, height, len(pictures), True)
    for i, picture in enumerate(pictures):
        Image.fromarray(picture).save(tmp_path / f"{i}.png")
    (tmp_path / "instances.json").write_text(json.dumps({
        "images": [{"id": i, "file_name": f"{i}.png"} for i in range(len(pictures))],
        "annotations": [{"image_id": i, "category_id": 0, "bbox": [
            *map(float, [x, y, right - x, bottom - y])]}
            for i, length in enumerate(lengths)
            for x, y, right, bottom in boxes[i, :length]],
        "categories": [{"id": 0, "name": "a"}]}))
    for step, transform, order in (
            (penstock.decode_image(33, **ON_BOXES), v2.Resize([33, 33]), in_order()),
            (penstock.decode_image(33, "random_resized", **ON_BOXES),
             v2.RandomResizedCrop(33), in_tries(0)),
            (penstock.decode_image(38, penstock.random_pixels(shorter=[40, 70]), **ON_BOXES),
             v2.Compose([v2.RandomResize(40, 71), v2.RandomCrop(38)]), in_order())):
        dataset = penstock.Dataset.coco(tmp_path / "instances.json", tmp_path,
                                        max_length=ROOM).map(step)
        with attach(dataset.batch(len(pictures)).seed(SEED)) as reader:
            batch = reader.next()
            assert batch.lengths("boxes").tolist() == lengths.tolist()
            for i, length in enumerate(lengths):
                wanted = their_boxes(pictures[i], boxes[i, :length], transform,
                                     order(Draws(i)))
                np.testing.assert_array_equal(batch["boxes"][i, :length], wanted)


def test_the_example_of_detection(in_broker, capsys):
    """Here, since PyPI's torchvision needs the operators that this file declares."""
    path = pathlib.Path(__file__).parents[2] / "client" / "python" / "examples" / "detection.py"
    with mock.patch("sys.argv", [str(path), "--pictures", "24"]):
        runpy.run_path(str(path), run_name="__main__")
    steps, before, after = re.search(r"(\d+) steps: mean loss (\S+), then (\S+)",
                                     capsys.readouterr().out).groups()
    assert int(steps) > 4
    assert float(after) < float(before)


# ---- tensors


MEAN, STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
FLOATS = ["float32", "float16", "bfloat16"]


def channels_last(rows, layout):
    return rows if layout == "hwc" else np.moveaxis(rows, 1, 3)


def tensors(pictures, *transforms):
    transform = v2.Compose([v2.ToImage(), *transforms])
    return torch.stack([transform(Image.fromarray(picture)) for picture in pictures])


@COLOURED
@pytest.mark.parametrize("layout", ["hwc", "chw"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_normalize(rows_of, pictures, dtype, layout):
    rows = channels_last(rows_of([penstock.normalize(MEAN, STD, dtype, layout)], pictures),
                         layout)
    assert rows.dtype.name == dtype
    theirs = tensors(pictures, v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD))
    theirs = theirs.permute(0, 2, 3, 1)
    if dtype == "float32":
        # torchvision rounds three times, Penstock once.
        np.testing.assert_allclose(rows, theirs.numpy(), rtol=0, atol=1e-6)
        once = (pictures / 255 - np.array(MEAN)) / np.array(STD)
        np.testing.assert_array_equal(rows, once.astype(dtype))
    else:
        np.testing.assert_array_equal(rows.astype(np.float32),
                                      theirs.to(getattr(torch, dtype)).float().numpy())


@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "bool"])
def test_cast(rows_of, pictures, dtype):
    layout = "chw" if pictures.ndim == 4 else "hwc"
    rows = rows_of([penstock.cast(dtype, layout)], pictures)
    assert rows.dtype.name == dtype
    theirs = tensors(pictures, v2.ToDtype(getattr(torch, dtype)))
    np.testing.assert_array_equal(rows.astype(np.float32),
                                  theirs.float().numpy().reshape(rows.shape))


def test_rescale(rows_of, pictures):
    layout = "chw" if pictures.ndim == 4 else "hwc"
    rows = rows_of([penstock.rescale(1 / 255, layout=layout)], pictures)
    theirs = tensors(pictures, v2.ToDtype(torch.float32, scale=True))
    np.testing.assert_allclose(rows, theirs.numpy().reshape(rows.shape), rtol=0, atol=6e-8)


@COLOURED
@pytest.mark.parametrize("layout", ["hwc", "chw"])
@pytest.mark.parametrize("probability,scale,ratio,value", [
    (0.5, [0.02, 0.33], [0.3, 3.3], 0.0),
    (0.7, [0.02, 0.33], [0.3, 3.3], [1.0, 2.0, 3.0]),
    (1, [0.25, 0.25], [1, 1], -1.5),  # CIFAR's
    (0.8, [0.02, 0.3333], [0.3, 3.3333], "random"),  # timm's
    (1, [0.5, 1], [0.2, 5], 7.0),  # tries that fail
    (1, [1, 1], [1, 1], 7.0)], ids=str)  # and all of them
def test_random_erasing(rows_of, pictures, layout, probability, scale, ratio, value):
    plain = penstock.normalize(MEAN, STD, layout=layout)
    wholes = channels_last(rows_of([plain], pictures), layout)
    rows = channels_last(rows_of([plain, penstock.random_erasing(
        probability, scale, ratio, value)], pictures), layout)
    transform = v2.RandomErasing(probability, scale, ratio, 7.0 if value == "random" else value)
    noise, erased = [], 0
    for i, (row, whole) in enumerate(zip(rows, wholes)):
        with random_numbers(in_tries(1)(Draws(i, op=1))):
            expected = transform(torch.tensor(whole).permute(2, 0, 1))
        expected = expected.permute(1, 2, 0).numpy()
        inside = expected != whole
        erased += inside.any()
        if value == "random":
            noise.append(row[inside])
            expected = np.where(inside, row, expected)
        np.testing.assert_array_equal(row, expected, f"sample {i}")
    assert erased == 0 if scale == [1, 1] else erased >= len(rows) * probability / 2
    if noise:
        noise = np.concatenate(noise)
        assert abs(noise.mean()) < 0.02 and abs(noise.std() - 1) < 0.02
        assert abs(np.mean(np.abs(noise) < 1) - 0.6827) < 0.01
        assert len(np.unique(noise)) > 0.99 * len(noise)


# ---- pairs


def partner_of(row):
    """Of four rows, as in mixup.h."""
    first = row // 4 * 4
    other = first + 1 + Draws(row // 4, op=0xff00).choice(0, 3)
    pairs = {first, other}
    if row not in pairs:
        pairs = set(range(first, first + 4)) - pairs
    return (pairs - {row}).pop()


@COLOURED
@pytest.mark.parametrize("step,alpha,cutmix_alpha,dtype", [
    (penstock.mixup(0.4), 0.4, 0, "float32"), (penstock.cutmix(), 0, 1, "float32"),
    (penstock.cutmix(0.5), 0, 0.5, "uint8"),
    (penstock.mixup(0.2, 1, 0.3, 0.8), 0.2, 1, "float32")],
    ids=["mixup", "cutmix", "cutmix of bytes", "both"])
def test_mixup(attach, tmp_path, pictures, step, alpha, cutmix_alpha, dtype):
    """A batch of two, rolled by one, is a pair."""
    count = len(pictures)
    np.save(tmp_path / "pictures.npy", pictures)
    np.save(tmp_path / "labels.npy", np.arange(count))
    dataset = (penstock.Dataset.npy({"image": tmp_path / "pictures.npy",
                                     "label": tmp_path / "labels.npy"})
               .map(penstock.one_hot(count, feature="label"),
                    penstock.cast(dtype, layout="chw"), step)
               .batch(count).seed(SEED))
    batch = attach(dataset).next()
    theirs = torch.tensor(pictures).permute(0, 3, 1, 2).to(getattr(torch, dtype))
    for i in range(count):
        pair = [i, partner_of(i)]
        draws = Draws(min(pair), op=2)
        chance, switch = ((0.8, 0.3) if alpha and cutmix_alpha
                          else (1, 1 if cutmix_alpha else 0))
        boxes = draws.number(129) < switch
        op = (v2.CutMix if boxes else v2.MixUp)(num_classes=count)
        first, second = (gamma(cutmix_alpha if boxes else alpha, draws, g) for g in (0, 1))
        op._dist = mock.Mock(sample=lambda _: first / (first + second))
        image, label = theirs[i], torch.eye(count)[i]
        if draws.number(128) < chance:
            with random_numbers(one_by_one(draws, [130, 131])):
                images, labels = op(theirs[pair], torch.tensor(pair))
            image, label = images[0], labels[0]
        np.testing.assert_array_equal(batch["image"][i], image.numpy(), f"sample {i}")
        np.testing.assert_allclose(batch["label"][i], label.numpy(), rtol=0, atol=1e-7)
