"""Pictures and their masks, from wherever they come, have the values of Pillow after
the same draws; lists and folders give what they name, in its order."""

import csv
import io
import math
import os
import subprocess
import sys
import tarfile

import numpy as np
import penstock
import pytest
from PIL import Image

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
COUNT = 9
SIZE = (40, 56)  # height, width
SEED = 7
MODULE = '''
import pathlib


class Pairs:
    """The bytes of pictures and masks."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def __len__(self):
        return %d

    def __getitem__(self, i):
        return {"image": (self.folder / f"pictures/{i}.png").read_bytes(),
                "mask": (self.folder / f"masks/{i}_mask.png").read_bytes()}
''' % COUNT


# ---- the draws of broker/transform/augmentation.h and crop.h


def uniform(seed, epoch, sample, op, draw):
    """Philox4x32-10."""
    low = 0xFFFFFFFF
    key = [seed & low, seed >> 32]
    counter = [sample & low, sample >> 32, epoch, op << 16 | draw // 2]
    for _ in range(10):
        one, two = counter[0] * 0xD2511F53, counter[2] * 0xCD9E8D57
        counter = [two >> 32 ^ counter[1] ^ key[0], two & low,
                   one >> 32 ^ counter[3] ^ key[1], one & low]
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    first = draw % 2 * 2
    return ((counter[first + 1] << 32 | counter[first]) >> 11) / 2 ** 53


def random_box(sample, op, width, height, scale=(0.08, 1), ratio=(3 / 4, 4 / 3)):
    """RandomResizedCrop.get_params with these draws: left, top, right, bottom."""
    def draw(number):
        return uniform(SEED, 0, sample, op, number)

    for t in range(10):
        area = width * height * (scale[0] + draw(4 * t) * (scale[1] - scale[0]))
        logs = [math.log(each) for each in ratio]
        aspect = math.exp(logs[0] + draw(4 * t + 1) * (logs[1] - logs[0]))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top = int(draw(4 * t + 2) * (height - h + 1))
            left = int(draw(4 * t + 3) * (width - w + 1))
            return left, top, left + w, top + h
    raise AssertionError("these pictures fit")


def pillows(picture, mask, sample):
    box = random_box(sample, 0, picture.width, picture.height)
    size = SIZE[::-1]
    pixels = np.asarray(picture.convert("RGB").crop(box).resize(size, Image.BILINEAR))
    values = np.asarray(mask.crop(box).resize(size, Image.NEAREST))
    if uniform(SEED, 0, sample, 1, 0) < 0.5:
        return pixels[:, ::-1], values[:, ::-1]
    return pixels, values


STEPS = [penstock.decode_image(SIZE, "random_resized", exact=True, mask="mask",
                               mask_dtype="int32"),
         penstock.flip(mask="mask")]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """COUNT pictures, and masks of every kind: pictures/N.png, masks/N_mask.png."""
    folder = tmp_path_factory.mktemp("pairs")
    draw = np.random.default_rng(1)
    (folder / "pictures").mkdir()
    (folder / "masks").mkdir()
    for i in range(COUNT):
        width, height = (int(n) for n in draw.integers(50, 300, 2))
        ramp = np.linspace(0, 200, width)[None, :, None] * np.ones((height, 1, 3))
        noise = draw.integers(0, 56, (height, width, 3))
        Image.fromarray((ramp + noise).astype(np.uint8)).save(
            folder / f"pictures/{i}.png")
        # Blocks of classes.
        values = draw.integers(0, 21, (height // 9 + 1, width // 9 + 1))
        values = values.repeat(9, 0).repeat(9, 1)[:height, :width]
        if i % 3 == 0:  # a palette in which an index tells no colour
            mask = Image.fromarray(values.astype(np.uint8), "P")
            mask.putpalette(draw.integers(0, 256, 768).astype(np.uint8).tobytes())
        elif i % 3 == 1:
            mask = Image.fromarray(values.astype(np.uint8))
        else:
            mask = Image.fromarray((values * 3000).astype(np.uint16))
        mask.save(folder / f"masks/{i}_mask.png")
    return folder


@pytest.fixture(scope="module")
def expected(pairs):
    rows = []
    for i in range(COUNT):
        rows.append(pillows(Image.open(pairs / f"pictures/{i}.png"),
                            Image.open(pairs / f"masks/{i}_mask.png"), i))
    return rows


def folder_of(pairs):
    return penstock.Dataset.image_folder(
        pairs / "pictures", labels="none",
        masks=penstock.masks(pairs / "masks", suffix="_mask.png"))


def list_of(pairs):
    with open(pairs / "pairs.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["n", "picture", "its mask"])
        for i in range(COUNT):
            writer.writerow([i, f"pictures/{i}.png", f"./masks/{i}_mask.png"])
    return penstock.Dataset.image_list(
        pairs / "pairs.csv", {"image": {"encoded": True, "column": "picture"},
                              "mask": {"encoded": True, "column": "its mask"}})


def tar_of(pairs):
    with tarfile.open(pairs / "pairs.tar", "w") as tar:
        for i in range(COUNT):
            tar.add(pairs / f"pictures/{i}.png", f"{i}.png")
            tar.add(pairs / f"masks/{i}_mask.png", f"{i}.mask.png")
    return penstock.Dataset.webdataset(
        pairs / "pairs.tar", {"image": {"member": "png", "encoded": True},
                              "mask": {"member": "mask.png", "encoded": True}})


def tfrecord_of(pairs):
    tf = pytest.importorskip("tensorflow")
    with tf.io.TFRecordWriter(str(pairs / "pairs.tfrecord")) as writer:
        for i in range(COUNT):
            files = {"image": f"pictures/{i}.png", "mask": f"masks/{i}_mask.png"}
            writer.write(tf.train.Example(features=tf.train.Features(feature={
                name: tf.train.Feature(bytes_list=tf.train.BytesList(
                    value=[(pairs / file).read_bytes()]))
                for name, file in files.items()})).SerializeToString())
    return penstock.Dataset.tfrecord(
        pairs / "pairs.tfrecord", {"image": {"encoded": True},
                                   "mask": {"encoded": True}})


def rows_of(reader):
    rows = []
    for epoch in reader.epochs():
        for batch in epoch:
            rows += [(np.array(image), np.array(mask)) for image, mask
                     in zip(batch["image"], batch["mask"])]
    return rows


def assert_pixels(image, pixels):
    # Pillow 13 resizes the columns first where that is less work, and rounds there.
    assert np.abs(image.astype(int) - pixels).max() <= 1


def compare(rows, expected):
    assert len(rows) == COUNT
    for (image, mask), (pixels, values) in zip(rows, expected):
        assert_pixels(image, pixels)
        assert mask.dtype == np.int32
        np.testing.assert_array_equal(mask, values)


@pytest.mark.parametrize("source", [folder_of, list_of, tar_of, tfrecord_of])
def test_pairs_are_pillows_after_the_same_draws(attach, pairs, expected, source):
    dataset = source(pairs).map(*STEPS).batch(4, last="partial")
    compare(rows_of(attach(dataset.seed(SEED))), expected)


def test_the_bytes_of_a_python_dataset_are_decoded_alike(tmp_path, pairs, expected):
    (tmp_path / "pairs_of_bytes.py").write_text(MODULE)
    dataset = penstock.Dataset.python("pairs_of_bytes:Pairs",
                                      args={"folder": str(pairs)})
    dataset = dataset.map(*STEPS).batch(4, last="partial").seed(SEED)
    with penstock.broker(workers=1, python_path=[str(tmp_path)]):
        with penstock.attach(dataset, timeout_s=60) as reader:
            compare(rows_of(reader), expected)


def test_a_mask_of_16_bits_says_what_it_needs(attach, pairs):
    reader = attach(folder_of(pairs).map(penstock.decode_image(
        SIZE, mask="mask")).batch(COUNT))
    with pytest.raises(penstock.DataLoss, match="say `mask_dtype: int32`"):
        rows_of(reader)


def test_a_mask_that_does_not_fit_is_an_error_of_its_sample(attach, tmp_path):
    for name, size in (("a", (30, 20)), ("b", (30, 21))):
        Image.new("RGB", (30, 20)).save(tmp_path / f"{name}.jpg")
        Image.new("L", size).save(tmp_path / f"{name}.png")
    dataset = penstock.Dataset.image_folder(
        tmp_path, labels="none", masks=penstock.masks(tmp_path))
    dataset = dataset.map(penstock.decode_image(8, mask="mask")).batch(2)
    with pytest.raises(penstock.DataLoss, match=r"30 x 21 pixels.*30 x 20"):
        rows_of(attach(dataset))
    assert len(rows_of(attach(dataset.on_error("skip"), job="skips"))) == 1


def test_a_list_gives_its_labels_in_its_order(attach, pairs, tmp_path):
    labels = ["dog", "a, b", "cat", 'ä "x"']
    rows = [(f"pictures/{n % COUNT}.png", labels[n % 4], n / 4, "x" * (n % 3))
            for n in (3, 1, 1, 7, 0, 2, 5)]
    path = tmp_path / "labels.tsv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file, delimiter="\t").writerows([["file", "breed", "age", "note"],
                                                    *rows])
    dataset = penstock.Dataset.image_list(
        path, {"image": {"encoded": True, "column": "file"},
               "label": {"classes": True, "column": "breed"},
               "age": {"dtype": np.float32}, "note": {"max_bytes": 4}},
        folder=pairs, delimiter="\t")
    reader = attach(dataset.map(penstock.decode_image(8, exact=True)).batch(7))
    batch = next(iter(next(iter(reader.epochs()))))
    names = sorted({row[1] for row in rows}, key=str.encode)
    assert batch["label"].tolist() == [names.index(row[1]) for row in rows]
    assert batch["age"].tolist() == [row[2] for row in rows]
    assert [bytes(note[:size]).decode() for note, size
            in zip(batch["note"], batch["note_bytes"].tolist())] == [
                row[3] for row in rows]
    for image, row in zip(batch["image"], rows):
        pixels = np.asarray(Image.open(pairs / row[0]).resize((8, 8), Image.BILINEAR))
        assert_pixels(image, pixels)


def run(*arguments):
    result = subprocess.run([PENSTOCK, *map(str, arguments)], text=True,
                            capture_output=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return result.stdout + result.stderr


@pytest.mark.parametrize("source", [folder_of, list_of])
def test_check_peek_and_bench_take_them(pairs, tmp_path, source):
    spec = tmp_path / "pairs.yaml"
    spec.write_text(source(pairs).map(*STEPS).batch(4, last="partial").to_yaml())
    assert f"{COUNT}" in run("check", "--ranks", 2, spec)
    out = run("peek", spec, "--out", tmp_path / "sheet.png")
    assert "image uint8 [40, 56, 3] and mask int32 [40, 56]" in out
    # Four cells, each with a picture and its mask.
    assert Image.open(tmp_path / "sheet.png").width % (2 * (SIZE[1] + 2)) == 2
    run("bench", "--dataset", spec, "--ranks", 2, "--verify")


def test_check_tells_that_two_lists_number_a_class_differently(pairs, tmp_path):
    specs = []
    for name, labels in (("train", ["ant", "bee", "cat"]), ("val", ["ant", "cat"])):
        path = tmp_path / f"{name}.csv"
        path.write_text("image,label\n" + "".join(
            f"pictures/{i}.png,{label}\n" for i, label in enumerate(labels)))
        spec = tmp_path / f"{name}.yaml"
        spec.write_text(penstock.Dataset.image_list(
            path, {"image": {"encoded": True}, "label": {"classes": True}},
            folder=pairs, name=name).map(penstock.decode_image(8)).batch(1).to_yaml())
        specs.append(spec)
    assert (f"labels of '{tmp_path}/train.csv' and '{tmp_path}/val.csv' differ: "
            "class 'cat' is label 2") in run("check", *specs)
