"""timm_rand_augment makes the pictures that timm's own RandAugment makes of the same random
numbers. timm's transform, of timm's own notation, asks for them in its order and gets the
draws that timm_augment.h documents: bit for bit, with bilinear interpolation at most 1 off
(a threshold after it makes that more, of few values)."""

import importlib.util
import math
import pathlib
import types

import numpy as np
import penstock
import pytest
from PIL import Image, ImageOps

import test_torchvision
from test_torchvision import Draws, rows_of  # the second is a fixture

PHOTOGRAPHS = pathlib.Path("/usr/share/backgrounds/mate/nature")
NAMES = ["AutoContrast", "Equalize", "Invert", "Rotate", "Posterize", "Solarize",
         "SolarizeAdd", "Color", "Contrast", "Brightness", "Sharpness", "ShearX", "ShearY",
         "TranslateXRel", "TranslateYRel"]
MOVING = {"Rotate", "ShearX", "ShearY", "TranslateXRel", "TranslateYRel"}
FILL = (124, 116, 104)


def posterize(picture, bits):
    """Pillow 13 refuses to keep no bits, which timm asks for; before, that made black."""
    if bits > 0:
        return ImageOps.posterize(picture, bits)
    return picture.point([0] * 256 * len(picture.getbands()))


@pytest.fixture(scope="module")
def timm():
    """timm.data.auto_augment alone: the package imports models, and what they need."""
    found = importlib.util.find_spec("timm")
    if found is None:
        pytest.skip("no timm")
    path = pathlib.Path(found.submodule_search_locations[0]) / "data/auto_augment.py"
    spec = importlib.util.spec_from_file_location("timm_auto_augment", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.ImageOps = types.SimpleNamespace(**{**vars(ImageOps), "posterize": posterize})
    return module


@pytest.fixture(scope="module")
def waves():
    return test_torchvision.waves()


@pytest.fixture(scope="module")
def photographs():
    files = sorted(PHOTOGRAPHS.glob("*.jpg"))
    assert files, "wanted the photographs of Debian's mate-backgrounds"
    made = [Image.open(file).convert("RGB").resize((200, 150)) for file in files]
    return np.stack([np.asarray(picture) for picture in made * 5])


@pytest.fixture(scope="module")
def noise():
    """Every value is as likely in every pixel."""
    return np.random.default_rng(4).integers(0, 256, (40, 37, 50, 3), dtype=np.uint8)


class Answers:
    """The module random, as timm uses it in one operation: the draws of operation i."""

    def __init__(self, draws, i, applies_at_random):
        self.draws, self.first = draws, 6 * i
        self.wanted = [draws.number(6 * i + 1)] if applies_at_random else []
        # timm turns the sign above 0.5, here it is turned below.
        self.wanted.append(1 - draws.number(6 * i + 4))
        self.chosen = None

    def random(self):
        return self.wanted.pop(0)

    def gauss(self, mean, deviation):
        u, v = (self.draws.number(self.first + k) for k in (2, 3))
        return mean + deviation * (math.sqrt(-2 * math.log(1 - u))
                                   * math.cos(2 * math.pi * v))

    def choice(self, of):
        self.chosen = of[0 if self.draws.number(self.first + 5) < 0.5 else 1]
        return self.chosen


class Replay:
    """What a transform of timm makes; seen: the operations that it has chosen, with
    their signs; bilinear: whether it interpolated the last picture so."""

    def __init__(self, timm, config, hparams):
        self.timm = timm
        self.transform = timm.rand_augment_transform(config, hparams)
        names = [op.name.replace("Increasing", "") for op in self.transform.ops]
        assert names == NAMES
        self.seen = set()
        self.bilinear = False

    def __call__(self, picture, draws):
        self.bilinear = False
        for i in range(self.transform.num_layers):
            which = draws.choice(6 * i, len(NAMES))
            op = self.transform.ops[which]
            answers = self.timm.random = Answers(draws, i, op.prob < 1)
            picture = op(picture)
            self.seen.add((NAMES[which], draws.number(6 * i + 4) < 0.5))
            self.bilinear |= answers.chosen == Image.Resampling.BILINEAR
        return np.asarray(picture)


def differences(rows_of, pictures, step, replay):
    """How much each row is off; and whether timm interpolated it bilinearly."""
    off, bilinear = [], []
    for i, (row, picture) in enumerate(zip(rows_of([step], pictures), pictures)):
        wanted = replay(Image.fromarray(picture), Draws(i))
        assert row.shape == wanted.shape
        off.append(np.abs(row.astype(int) - wanted))
        bilinear.append(replay.bilinear)
    return np.stack(off), np.array(bilinear)


CONFIGS = {
    "rand-m9-mstd0.5-inc1": {"magnitude": 9, "magnitude_std": 0.5, "increasing": True},
    "rand-m9-mstd0.5": {"magnitude": 9, "magnitude_std": 0.5},
    "rand-n3-m4-mstd3-p0.9": {"operations": 3, "magnitude": 4, "magnitude_std": 3,
                              "probability": 0.9},
    "rand-n4-m15-mmax40-mstd12-inc1-p1": {
        "operations": 4, "magnitude": 15, "magnitude_std": 12, "magnitude_max": 40,
        "increasing": True, "probability": 1},
    "rand-n4-m15-mmax40-mstd12-p1": {
        "operations": 4, "magnitude": 15, "magnitude_std": 12, "magnitude_max": 40,
        "probability": 1},
}


@pytest.mark.parametrize("kind", ["waves", "photographs", "noise"])
@pytest.mark.parametrize("config", CONFIGS)
def test_bicubic_has_timms_bytes(request, rows_of, timm, config, kind):
    replay = Replay(timm, config, {"img_mean": FILL,
                                   "interpolation": Image.Resampling.BICUBIC})
    off, _ = differences(
        rows_of, request.getfixturevalue(kind),
        penstock.timm_rand_augment(**CONFIGS[config], interpolation="bicubic", fill=FILL),
        replay)
    assert off.max() == 0
    if "p1" in config:
        assert {name for name, _ in replay.seen} == set(NAMES)
        assert {(name, sign) for name in MOVING for sign in (False, True)} <= replay.seen


@pytest.mark.parametrize("kind", ["waves", "photographs", "noise"])
def test_one_random_interpolation_is_at_most_1_off(request, rows_of, timm, kind):
    off, bilinear = differences(
        rows_of, request.getfixturevalue(kind),
        penstock.timm_rand_augment(1, 9, 0.5, increasing=True, probability=1, fill=FILL),
        Replay(timm, "rand-n1-m9-mstd0.5-inc1-p1", {"img_mean": FILL}))
    assert off[~bilinear].max() == 0
    assert bilinear.any() and off[bilinear].max() <= 1


@pytest.mark.parametrize("kind", ["waves", "photographs", "noise"])
def test_the_defaults_are_those_of_rand(request, rows_of, timm, kind):
    off, bilinear = differences(rows_of, request.getfixturevalue(kind),
                                penstock.timm_rand_augment(), Replay(timm, "rand", None))
    assert off[~bilinear].max() == 0
    assert np.mean(off[bilinear] > 1) < 0.005


def test_gray_pictures(rows_of, timm, waves):
    gray = waves[:, :, :, 0]
    for name in ("nearest", "bicubic"):
        replay = Replay(timm, "rand-n3-m9-mstd0.5-inc1-p0.9",
                        {"img_mean": 128, "interpolation": Image.Resampling[name.upper()]})
        step = penstock.timm_rand_augment(3, 9, 0.5, increasing=True, probability=0.9,
                                          interpolation=name)
        assert differences(rows_of, gray, step, replay)[0].max() == 0
