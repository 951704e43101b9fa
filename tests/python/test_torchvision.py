"""Steps on pictures have the values of torchvision.transforms.v2 on Pillow's pictures, with
the draws that the headers of broker/transform document: bit for bit, or within a bound that
the test states."""

import math

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
from torchvision.transforms import InterpolationMode, v2
from torchvision.transforms.v2 import functional as F

COUNT = 32
SIZE = (61, 80)  # height, width


@pytest.fixture(scope="module")
def pictures():
    """Smooth, with noise, and not square."""
    draw = np.random.default_rng(2)
    y, x = np.mgrid[0:SIZE[0], 0:SIZE[1]]
    found = []
    for i in range(COUNT):
        waves = [110 + 100 * np.sin(x / (7 + c + i % 5) + y / (11 - c)) for c in range(3)]
        noise = draw.integers(-20, 21, (*SIZE, 3))
        found.append(np.clip(np.stack(waves, 2) + noise, 0, 255).astype(np.uint8))
    return np.stack(found)


@pytest.fixture
def rows_of(attach, tmp_path):
    """The pictures after these steps; picture i is sample i of epoch 0."""
    def run(steps, pictures):
        np.save(tmp_path / "pictures.npy", pictures)
        dataset = penstock.Dataset.npy({"image": tmp_path / "pictures.npy"}).map(*steps)
        with attach(dataset.batch(len(pictures)).seed(SEED)) as reader:
            return np.array(reader.next()["image"])

    return run


class Draws:
    def __init__(self, sample, op=0):
        self.sample, self.op = sample, op

    def number(self, draw):
        return uniform(SEED, 0, self.sample, self.op, draw)

    def within(self, draw, low, high):
        return low + self.number(draw) * (high - low)

    def choice(self, draw, count):
        return int(self.number(draw) * count)


def compare(rows_of, pictures, step, expected, allowed=0):
    """expected(PIL image, Draws) -> what torchvision makes."""
    rows = rows_of([step], pictures)
    for i, (row, picture) in enumerate(zip(rows, pictures)):
        wanted = np.asarray(expected(Image.fromarray(picture), Draws(i)))
        assert row.shape == wanted.shape
        assert np.abs(row.astype(int) - wanted).max() <= allowed, f"sample {i}"
    return rows


def apply(policy, picture, which, bins, bin_, sign, space=None):
    space = policy._AUGMENTATION_SPACE if space is None else space
    name = list(space)[which]
    magnitudes, signed = space[name]
    values = magnitudes(bins, picture.height, picture.width)
    magnitude = 0.0 if values is None else float(values[bin_])
    return policy._apply_image_or_video_transform(
        picture, name, -magnitude if signed and sign < 0.5 else magnitude,
        interpolation=policy.interpolation, fill=policy._fill)


def test_rand_augment(rows_of, pictures):
    for magnitude, fill in ((9, None), (20, [124, 116, 104])):
        policy = v2.RandAugment(magnitude=magnitude, fill=fill)

        def expected(picture, draws):
            for i in range(2):
                picture = apply(policy, picture, draws.choice(2 * i, 14), 31, magnitude,
                                draws.number(2 * i + 1))
            return picture

        compare(rows_of, pictures, penstock.rand_augment(magnitude=magnitude, fill=fill),
                expected)


def test_trivial_augment(rows_of, pictures):
    policy = v2.TrivialAugmentWide()

    def expected(picture, draws):
        return apply(policy, picture, draws.choice(0, 14), 31, draws.choice(1, 31),
                     draws.number(2))

    compare(rows_of, pictures, penstock.trivial_augment(), expected)
    gray = pictures[:, :, :, 0]
    compare(rows_of, gray, penstock.trivial_augment(), expected)


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


@pytest.mark.parametrize("alpha,all_operations", [(1, True), (0.4, False)])
def test_aug_mix(rows_of, pictures, alpha, all_operations):
    policy = v2.AugMix(alpha=alpha, interpolation=InterpolationMode.NEAREST)
    space = (policy._AUGMENTATION_SPACE if all_operations
             else policy._PARTIAL_AUGMENTATION_SPACE)

    def expected(picture, draws):
        one, other = gamma(alpha, draws, 0), gamma(alpha, draws, 1)
        chains = [gamma(alpha, draws, 2 + i) for i in range(3)]
        mixed = one / (one + other) * np.asarray(picture, np.float64)
        for i, weight in enumerate(chains):
            first = 4096 + 64 * i
            augmented = picture
            for k in range(1 + draws.choice(first, 3)):
                draw = first + 1 + 3 * k
                augmented = apply(policy, augmented, draws.choice(draw, len(space)), 10,
                                  draws.choice(draw + 1, 3), draws.number(draw + 2), space)
            mixed += (other / (one + other) * weight / sum(chains)
                      * np.asarray(augmented, np.float64))
        return mixed.astype(int)

    # The sum is in single precision, and truncated.
    step = penstock.aug_mix(alpha=alpha, all_operations=all_operations,
                            interpolation="nearest")
    compare(rows_of, pictures, step, expected, allowed=1)
    # Bilinear values are at most 1 off, which a threshold may amplify.
    policy.interpolation = InterpolationMode.BILINEAR
    rows = rows_of([penstock.aug_mix(alpha=alpha, all_operations=all_operations)],
                   pictures)
    off = [np.abs(row.astype(int) - expected(Image.fromarray(picture), Draws(i)))
           for i, (row, picture) in enumerate(zip(rows, pictures))]
    assert np.mean(np.stack(off) > 1) < 0.01


def test_color_jitter(rows_of, pictures):
    adjust = [F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue]

    def expected(picture, draws):
        if draws.number(0) >= 0.8:
            return picture
        order = [0, 1, 2, 3]
        for i in (3, 2, 1):
            j = draws.choice(4 - i, i + 1)
            order[i], order[j] = order[j], order[i]
        ranges = [(0.6, 1.4), (0.5, 2), (0.3, 1.7), (-0.2, 0.2)]
        for i in order:
            picture = adjust[i](picture, draws.within(4 + i, *ranges[i]))
        return picture

    compare(rows_of, pictures, penstock.color_jitter(
        0.4, [0.5, 2], [0.3, 1.7], 0.2, probability=0.8), expected)


def test_blur(rows_of, pictures):
    for kernel in (3, 9, 23):
        def expected(picture, draws):
            return F.gaussian_blur(picture, [kernel] * 2, [draws.within(1, 0.1, 2)] * 2)

        compare(rows_of, pictures, penstock.blur(kernel), expected, allowed=1)


@pytest.mark.parametrize("name,mode,allowed", [
    ("nearest", InterpolationMode.NEAREST, 0), ("bilinear", InterpolationMode.BILINEAR, 1),
    ("bicubic", InterpolationMode.BICUBIC, 0)])
def test_moves(rows_of, pictures, name, mode, allowed):
    options = {"interpolation": mode, "fill": [9, 8, 7]}

    def rotated(picture, draws):
        return F.rotate(picture, draws.within(1, -40, 40), **options)

    def moved(picture, draws):
        return F.affine(
            picture, draws.within(1, -20, 20),
            [round(draws.within(2, -0.1, 0.1) * SIZE[1]),
             round(draws.within(3, -0.3, 0.3) * SIZE[0])],
            draws.within(4, 0.8, 1.3),
            [draws.within(5, -10, 10), draws.within(6, 0, 5)], **options)

    def perspective(picture, draws):
        if draws.number(0) >= 0.9:
            return picture
        reach = [int(0.6 * (side // 2)) + 1 for side in SIZE[::-1]]
        right, bottom = SIZE[1] - reach[0], SIZE[0] - reach[1]
        begins = [0, 0, right, 0, right, bottom, 0, bottom]
        ends = [begins[i] + draws.choice(i + 1, reach[i % 2]) for i in range(8)]
        corners = [[0, 0], [SIZE[1] - 1, 0], [SIZE[1] - 1, SIZE[0] - 1], [0, SIZE[0] - 1]]
        return F.perspective(picture, corners, [ends[i:i + 2] for i in (0, 2, 4, 6)],
                             **options)

    same = {"interpolation": name, "fill": [9, 8, 7]}
    compare(rows_of, pictures, penstock.rotate(40, **same), rotated, allowed)
    compare(rows_of, pictures, penstock.affine(
        20, [0.1, 0.3], [0.8, 1.3], [10, [0, 5]], **same), moved, allowed)
    # Coefficients are rounded to single precision, which may move an edge by a pixel.
    if allowed == 0:
        rows = rows_of([penstock.perspective(0.6, 0.9, **same)], pictures)
        same_pixels = [np.mean(row == np.asarray(perspective(Image.fromarray(picture),
                                                             Draws(i))))
                       for i, (row, picture) in enumerate(zip(rows, pictures))]
        assert min(same_pixels) > 0.995
    else:
        compare(rows_of, pictures, penstock.perspective(0.6, 0.9, **same), perspective,
                allowed=4)


def test_random_crops(rows_of, pictures):
    def padded(picture, draws):
        picture = F.pad(picture, [5, 6, 7, 8], padding_mode="reflect")
        top = draws.choice(1, picture.height - 60 + 1)
        left = draws.choice(2, picture.width - 70 + 1)
        return F.crop(picture, top, left, 60, 70)

    compare(rows_of, pictures, penstock.crop(
        penstock.random_pixels(padding=[5, 6, 7, 8], mode="reflect"), [60, 70]), padded)

    def scaled(picture, draws):
        picture = F.resize(picture, [70 + draws.choice(0, 31)], antialias=True)
        top = draws.choice(1, picture.height - 64 + 1)
        left = draws.choice(2, picture.width - 64 + 1)
        return F.crop(picture, top, left, 64, 64)

    # Pillow 13 resizes columns first where that is less work, and rounds there.
    compare(rows_of, pictures, penstock.crop(
        penstock.random_pixels(shorter=[70, 100]), 64), scaled, allowed=1)

    def evaluated(picture, draws):
        return F.center_crop(F.resize(picture, [50]), [40, 90])

    compare(rows_of, pictures, penstock.crop(
        penstock.center_pixels(shorter=50), [40, 90]), evaluated, allowed=1)


@pytest.mark.parametrize("layout", ["hwc", "chw"])
def test_random_erasing(rows_of, pictures, layout):
    def box(draws):
        if draws.number(0) >= 0.7:
            return None
        area = SIZE[0] * SIZE[1]
        logs = [math.log(0.3), math.log(3.3)]
        for t in range(10):
            erased = area * draws.within(1 + 4 * t, 0.02, 0.33)
            ratio = math.exp(draws.within(2 + 4 * t, *logs))
            height = round(math.sqrt(erased * ratio))
            width = round(math.sqrt(erased / ratio))
            if height < SIZE[0] and width < SIZE[1]:
                return (draws.choice(3 + 4 * t, SIZE[0] - height + 1),
                        draws.choice(4 + 4 * t, SIZE[1] - width + 1), height, width)
        return None

    normalize = penstock.normalize([0.4, 0.5, 0.6], [0.2, 0.3, 0.25], layout=layout)
    plain = rows_of([normalize], pictures)
    for value in (0.0, [1.0, 2.0, 3.0], "random"):
        rows = rows_of([normalize, penstock.random_erasing(0.7, value=value)], pictures)
        noise = []
        for i, (row, whole) in enumerate(zip(rows, plain)):
            if layout == "hwc":
                row, whole = row.transpose(2, 0, 1), whole.transpose(2, 0, 1)
            found = box(Draws(i, 1))
            if found is None:
                np.testing.assert_array_equal(row, whole)
                continue
            top, left, height, width = found
            inside = (slice(None), slice(top, top + height), slice(left, left + width))
            if value == "random":
                noise.append(row[inside].ravel())
                expected = np.array(whole)
                expected[inside] = row[inside]
            else:
                fill = torch.tensor(value).reshape(-1, 1, 1)
                expected = F.erase(torch.from_numpy(np.array(whole)), top, left, height,
                                   width, fill).numpy()
            np.testing.assert_array_equal(row, expected)
        if noise:
            noise = np.concatenate(noise)
            assert abs(noise.mean()) < 0.02 and abs(noise.std() - 1) < 0.02
            assert abs(np.mean(np.abs(noise) < 1) - 0.6827) < 0.01
            assert len(np.unique(noise)) > 0.99 * len(noise)


@pytest.mark.parametrize("name", ["mixup", "cutmix"])
def test_mixup(attach, tmp_path, pictures, name):
    """A batch of two, rolled by one, is a pair; its weight and box are those of the draws."""
    np.save(tmp_path / "pictures.npy", pictures)
    np.save(tmp_path / "labels.npy", np.arange(COUNT))
    step = penstock.mixup(0.4) if name == "mixup" else penstock.cutmix()
    dataset = (penstock.Dataset.npy({"image": tmp_path / "pictures.npy",
                                     "label": tmp_path / "labels.npy"})
               .map(penstock.one_hot(COUNT, feature="label"),
                    penstock.cast("float32", layout="chw"), step)
               .batch(COUNT).seed(SEED))
    batch = attach(dataset).next()
    op = v2.MixUp(num_classes=COUNT) if name == "mixup" else v2.CutMix(num_classes=COUNT)
    for i in range(COUNT):
        label = np.array(batch["label"][i])
        partner = next((k for k in np.argsort(-label)[:2].tolist() if k != i))
        draws = Draws(min(i, partner), op=2)
        of_first, of_second = (gamma(0.4 if name == "mixup" else 1, draws, g)
                               for g in (0, 1))
        lam = of_first / (of_first + of_second)
        params = {"lam": lam, "labels": None, "batch_size": 2}
        if name == "cutmix":
            height, width = SIZE
            x, y = draws.choice(130, width), draws.choice(131, height)
            half = 0.5 * math.sqrt(1 - lam)
            across, down = int(half * width), int(half * height)
            box = (max(x - across, 0), max(y - down, 0), min(x + across, width),
                   min(y + down, height))
            lam = 1 - (box[2] - box[0]) * (box[3] - box[1]) / (width * height)
            params = {"box": box, "lam_adjusted": lam, "labels": None, "batch_size": 2}
        pair = torch.tensor(pictures[[i, partner]]).permute(0, 3, 1, 2).float()
        wanted = op.transform(pair, params)[0].numpy()
        assert np.array_equal(batch["image"][i], wanted), i
        assert np.isclose(label[i], lam, atol=1e-7)
