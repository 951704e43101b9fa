"""`penstock recipe`: over small sets in each official layout, the specs that it shows are
taken by `penstock check`, and a batch has the form that its network wants and the values
of the files; over Debian's Fashion-MNIST they are whole. What is missing is told."""

import gzip
import io
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tarfile

import numpy as np
import penstock
import pytest
from PIL import Image

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
FASHION_MNIST = pathlib.Path("/usr/share/datasets/fashion-mnist")
CIFAR = {"cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
         "cifar100": ((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))}
draw = np.random.default_rng(0)


def recipe(*words, status=0, **options):
    """What `penstock recipe` prints; its errors too."""
    done = subprocess.run([PENSTOCK, "recipe", *words], text=True, timeout=120,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                          **options)
    assert done.returncode == status, done.stdout
    return done.stdout


def incomplete(name, folder, *words):
    """The problems that the check tells of: (file, what was found)."""
    told = json.loads(recipe("check", name, folder, "--json", *words, status=1))
    assert not told["complete"] and told["had"]
    return [(each["file"], each["found"]) for each in told["problems"]]


def pictures(height, width):
    return draw.integers(0, 256, (height, width, 3), dtype=np.uint8)


def jpeg(height=90, width=130):
    file = io.BytesIO()
    Image.fromarray(pictures(height, width)).save(file, "JPEG")
    return file.getvalue()


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)


# ---- four rows of each split, in the official layout


def make_idx(folder):
    for part in ("train", "t10k"):
        for kind, shape in (("images-idx3", (4, 28, 28)), ("labels-idx1", (4,))):
            values = draw.integers(0, 10, shape, dtype=np.uint8)
            write(folder / f"{part}-{kind}-ubyte.gz", gzip.compress(
                struct.pack(f">I{len(shape)}I", 0x800 + len(shape), *shape)
                + values.tobytes()))


def make_cifar10(folder):
    for name, rows in (("data_batch_1", 2), ("data_batch_2", 2), ("data_batch_3", 1),
                       ("data_batch_4", 1), ("data_batch_5", 1), ("test_batch", 4)):
        records = draw.integers(0, 256, (rows, 3073), dtype=np.uint8)
        records[:, 0] %= 10
        write(folder / f"{name}.bin", records.tobytes())


def make_cifar100(folder):
    for name in ("train", "test"):
        records = draw.integers(0, 256, (4, 3074), dtype=np.uint8)
        records[:, 0] %= 20
        records[:, 1] %= 100
        write(folder / f"{name}.bin", records.tobytes())


def make_imagenet(folder):
    for part in ("train", "val"):
        for name in ("n01440764", "n01443537"):
            for i in range(2):
                write(folder / part / name / f"{name}_{i}.JPEG", jpeg())


def make_webdataset(folder):
    picture = jpeg()
    shards = [f"imagenet1k-train-{i:04}.tar" for i in range(1024)]
    shards += [f"imagenet1k-validation-{i:02}.tar" for i in range(64)]
    folder.mkdir()
    for shard in shards:
        with tarfile.open(folder / shard, "w") as tar:
            for name, content in (("a.jpg", picture), ("a.cls", b"7"), ("a.json", b"{}")):
                info = tarfile.TarInfo(name)
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))


def make_tfrecord(folder):
    tf = pytest.importorskip("tensorflow", reason="no TensorFlow")
    folder.mkdir()
    record = tf.train.Example(features=tf.train.Features(feature={
        "image/encoded": tf.train.Feature(bytes_list=tf.train.BytesList(value=[jpeg()])),
        "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(value=[8])),
    })).SerializeToString()
    for part, shards in (("train", 1024), ("validation", 128)):
        for i in range(shards):
            with tf.io.TFRecordWriter(
                    str(folder / f"{part}-{i:05}-of-{shards:05}")) as writer:
                writer.write(record)


def make_voc(folder):
    for part in ("train", "val"):
        names = [f"2007_00000{i}" if part == "train" else f"2008_00000{i}" for i in range(4)]
        write(folder / "ImageSets/Segmentation" / f"{part}.txt",
              "".join(name + "\n" for name in names).encode())
        for name in names:
            write(folder / "JPEGImages" / f"{name}.jpg", jpeg(60, 90))
            mask = Image.fromarray(np.full((60, 90), 15, np.uint8), "P")
            mask.putpalette(list(range(256)) * 3)
            (folder / "SegmentationClass").mkdir(exist_ok=True)
            mask.save(folder / "SegmentationClass" / f"{name}.png")
    write(folder / "JPEGImages/2009_000001.jpg", jpeg())  # of detection


def make_c4(folder):
    for part, shards in (("train", 2), ("validation", 1)):
        for i in range(shards):
            write(folder / f"c4-{part}.{i:05}-of-{shards:05}.json", b"".join(
                json.dumps({"text": f"{part} {i} {row}", "timestamp": "", "url": ""}).encode()
                + b"\n" for row in range(4)))


def make_fineweb(folder):
    for name in ("train_000001", "train_000002", "val_000000"):
        header = np.zeros(256, np.int32)
        header[:3] = 20240520, 1, 2 * 1024 + 1
        write(folder / f"fineweb_{name}.bin",
              header.tobytes() + np.arange(2 * 1024 + 1, dtype=np.uint16).tobytes())


MAKERS = {"fashion-mnist": make_idx, "mnist": make_idx, "cifar10": make_cifar10,
          "cifar10-trivial-augment": make_cifar10, "cifar100": make_cifar100,
          "imagenet": make_imagenet, "imagenet-torchvision-2021": make_imagenet,
          "imagenet-timm": make_imagenet, "imagenet-rand-augment": make_imagenet,
          "imagenet-tfrecord": make_tfrecord, "imagenet-webdataset": make_webdataset,
          "voc-segmentation": make_voc, "c4": make_c4, "fineweb": make_fineweb}
RECIPES = {each["recipe"]: each
           for each in json.loads(recipe("list", "--json"))["recipes"]}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The folder of a small set."""
    top = tmp_path_factory.mktemp("recipes")

    def make(name):
        folder = top / MAKERS[name].__name__
        if not folder.exists():
            MAKERS[name](folder)
        return folder

    return make


def small_spec(name, folder, split, path):
    """The spec that is shown, with four rows a batch, in a file."""
    text = recipe("show", name, folder, "--split", split)
    path.write_text(re.sub(r"^batch: {size: \d+", "batch: {size: 4", text, flags=re.M))
    return path


def first_batch(attach, spec, **options):
    dataset = penstock.Dataset.from_file(spec).repeat(1)
    return next(iter(next(iter(attach(dataset, **options).epochs()))))


def test_every_recipe_has_a_small_set():
    assert sorted(RECIPES) == sorted(MAKERS)
    table = recipe("list")
    for name, each in RECIPES.items():
        assert re.search(rf"^{name}  +\S", table, re.M)
        assert f"\n{name}: {each['layout']}\n" in table


@pytest.mark.parametrize("name, split", [
    (name, split) for name, each in RECIPES.items() for split in each["splits"]])
def test_a_spec_is_checked_and_gives_its_batches(attach, made, tmp_path, name, split):
    spec = small_spec(name, made(name), split, tmp_path / "spec.yaml")
    done = subprocess.run([PENSTOCK, "check", spec], text=True, capture_output=True,
                          timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    batch = first_batch(attach, spec)
    if name in ("c4", "fineweb"):
        return
    sheet = tmp_path / "sheet.png"
    subprocess.run([PENSTOCK, "peek", spec, "--out", sheet], timeout=60, check=True,
                   capture_output=True)
    assert Image.open(sheet).size[0] > 28
    side = (28 if "mnist" in name else 32 if "cifar" in name
            else {"train": 480, "validation": 512}[split] if "voc" in name
            else 176 if "2021" in name and split == "train" else 224)
    assert batch["image"].shape == (4, 1 if "mnist" in name else 3, side, side)
    assert batch["image"].dtype == np.float32
    assert np.isfinite(batch["image"]).all()
    if "voc" in name:
        assert batch["mask"].dtype == np.int64
        assert {15} <= set(np.unique(batch["mask"])) <= {15, 255}
        return
    if "2021" in name and split == "train":  # mixed, of classes 0 and 1
        assert batch["label"].shape == (4, 1000) and batch["label"].dtype == np.float32
        assert np.allclose(batch["label"][:, :2].sum(0), 2, atol=1e-5)
        return
    assert batch["label"].dtype == np.int64
    if name in ("imagenet-tfrecord", "imagenet-webdataset"):
        assert batch["label"].tolist() == [7] * 4
    elif "imagenet" in name:
        assert sorted(batch["label"]) == [0, 0, 1, 1]


@pytest.mark.parametrize("name", CIFAR)
def test_cifar_has_the_values_of_the_file(attach, made, tmp_path, name):
    folder = made(name)
    batch = first_batch(attach, small_spec(name, folder, "test", tmp_path / "spec.yaml"))
    labels = 1 if name == "cifar10" else 2
    records = np.fromfile(folder / ("test_batch.bin" if name == "cifar10" else "test.bin"),
                          np.uint8).reshape(4, -1)
    mean, std = (np.array(values).reshape(3, 1, 1) for values in CIFAR[name])
    expected = (records[:, labels:].reshape(4, 3, 32, 32) / 255 - mean) / std
    np.testing.assert_allclose(batch["image"], expected, atol=1e-5)
    assert batch["label"].tolist() == records[:, labels - 1].tolist()
    if name == "cifar100":
        assert batch["coarse"].tolist() == records[:, 0].tolist()


def test_texts_and_tokens_are_those_of_the_files(attach, made, tmp_path):
    batch = first_batch(attach, small_spec("c4", made("c4"), "validation",
                                           tmp_path / "c4.yaml"))
    assert [bytes(text[:size]).decode() for text, size
            in zip(batch["text"], batch["text_bytes"])] == [
                f"validation 0 {row}" for row in range(4)]
    spec = small_spec("fineweb", made("fineweb"), "validation", tmp_path / "fineweb.yaml")
    batch = first_batch(attach, spec, job="tokens")
    assert batch["input"].ravel().tolist() == list(range(2048))
    assert batch["target"].ravel().tolist() == list(range(1, 2049))


def test_the_lists_of_voc_divide_it(attach, made, tmp_path):
    for split in ("train", "validation"):
        spec = small_spec("voc-segmentation", made("voc-segmentation"), split,
                          tmp_path / f"{split}.yaml")
        done = subprocess.run([PENSTOCK, "check", "--json", spec], text=True,
                              capture_output=True, timeout=60, check=True)
        assert '"rows_per_epoch":4' in done.stdout.replace(" ", "")


@pytest.mark.skipif(not FASHION_MNIST.exists(), reason="no dataset-fashion-mnist")
def test_fashion_mnist_is_whole(attach, tmp_path):
    told = json.loads(recipe("check", "fashion-mnist", FASHION_MNIST, "--json"))
    assert told["complete"] and told["splits"] == {"train": True, "test": True}
    assert told["files"] == 4 and told["bytes"] == 30878551 and told["problems"] == []
    assert "train complete, test complete" in recipe("check", "fashion-mnist", FASHION_MNIST)
    for split, rows in RECIPES["fashion-mnist"]["splits"].items():
        spec = tmp_path / f"{split}.yaml"
        spec.write_text(recipe("show", "fashion-mnist", FASHION_MNIST, "--split", split))
        labels = []
        for epoch in attach(penstock.Dataset.from_file(spec).repeat(1), job=split).epochs():
            for batch in epoch:
                labels += batch["label"].tolist()
        # The last batch of training is dropped.
        assert len(labels) == (rows if split == "test" else rows // 256 * 256)
        if split == "test":
            assert np.bincount(labels).tolist() == [1000] * 10


@pytest.mark.skipif(not FASHION_MNIST.exists(), reason="no dataset-fashion-mnist")
def test_mnist_unpacked_is_whole_and_cut_off_is_not(tmp_path):
    # Files of the same sizes.
    folder = tmp_path / "MNIST/raw"
    for file in FASHION_MNIST.iterdir():
        write(folder / file.stem, gzip.decompress(file.read_bytes()))
    recipe("check", "mnist", folder)
    assert f'"{folder}/train-images-idx3-ubyte"' in recipe("show", "mnist", folder)
    assert f"penstock recipe check mnist {tmp_path}/MNIST/raw\n" in recipe(
        "check", "mnist", tmp_path, status=1)
    os.truncate(folder / "train-images-idx3-ubyte", 47040015)
    (folder / "t10k-labels-idx1-ubyte").unlink()
    assert incomplete("mnist", folder) == [
        ("train-images-idx3-ubyte", "has 47,040,015 bytes instead of 47,040,016: cut off"),
        ("t10k-labels-idx1-ubyte.gz", "is missing")]
    assert len(incomplete("mnist", folder, "--split", "train")) == 1
    packed = tmp_path / "packed"
    shutil.copytree(FASHION_MNIST, packed)
    os.truncate(packed / "train-images-idx3-ubyte.gz", 20000000)
    assert incomplete("fashion-mnist", packed) == [
        ("train-images-idx3-ubyte.gz", "does not end as its gzip file should: cut off")]


@pytest.mark.parametrize("name", CIFAR)
def test_cifar_whole_and_not(tmp_path, name):
    sizes = ({f"data_batch_{i}.bin": 30730000 for i in range(1, 6)} if name == "cifar10"
             else {"train.bin": 153700000})
    sizes |= {"test_batch.bin": 30730000} if name == "cifar10" else {"test.bin": 30740000}
    for file, size in sizes.items():
        write(tmp_path / file, b"")
        os.truncate(tmp_path / file, size)  # sparse
    recipe("check", name, tmp_path)
    last = list(sizes)[-1]
    (tmp_path / last).unlink()
    assert incomplete(name, tmp_path) == [(last, "is missing")]
    told = recipe("check", name, tmp_path, status=1)
    assert f"{tmp_path}/{last}: is missing\n" in told and "had from: https://" in told
    assert "train complete, test incomplete" in told
    recipe("check", name, tmp_path, "--split", "train")


@pytest.mark.parametrize("name, problems", [
    ("imagenet", [("train/", "has 2 class folders instead of 1,000"),
                  ("train/n01440764", "has 2 pictures instead of 732 to 1300"),
                  ("val/", "has 4 pictures in class folders instead of 50,000")]),
    ("voc-segmentation", [("ImageSets/Segmentation/val.txt",
                           "has 4 lines instead of 1,449")]),
])
def test_a_small_set_is_incomplete(made, name, problems):
    found = incomplete(name, made(name))
    for problem in problems:
        assert problem in found


def test_imagenet_whole_and_not(tmp_path):
    picture = tmp_path / "x.JPEG"
    picture.write_bytes(b"x")
    folders = [tmp_path / "val" / f"n{i:08}" for i in range(1000)]
    for folder in folders:
        folder.mkdir(parents=True)
        for i in range(50):
            os.link(picture, folder / f"{i}.JPEG")
    recipe("check", "imagenet-timm", tmp_path, "--split", "validation")
    (folders[7] / "3.JPEG").unlink()
    assert incomplete("imagenet", tmp_path, "--split", "validation") == [
        ("val/n00000007", "has 49 pictures instead of 50"),
        ("val/", "has 49,999 pictures in class folders instead of 50,000")]
    shutil.rmtree(tmp_path / "val")
    # As the archive has them.
    (tmp_path / "val").mkdir()
    os.link(picture, tmp_path / "val/ILSVRC2012_val_00000001.JPEG")
    found = incomplete("imagenet", tmp_path)
    assert ("train/", "is missing") in found
    assert ("val/", "has 1 picture in no folder of a class") in found


def test_shards_whole_and_not(made, tmp_path):
    for name, gone, left in (
            ("imagenet-webdataset", "imagenet1k-train-0512.tar", 1087),
            ("c4", "c4-train.00001-of-00002.json", 2),
            ("fineweb", "fineweb_train_000001.bin", 2)):
        folder = tmp_path / name
        shutil.copytree(made(name), folder)
        assert json.loads(recipe("check", name, folder, "--json"))["files"] == left + 1
        (folder / gone).rename(folder / "elsewhere")
        assert incomplete(name, folder) == [(gone, "is missing")]
        assert json.loads(recipe("check", name, folder, "--split", "validation",
                                 "--json"))["complete"]
        content = (folder / "elsewhere").read_bytes()
        write(folder / gone, content[:len(content) // 2 + 3])
        (file, found), = incomplete(name, folder)
        assert file == gone and "cut off" in found


def test_tfrecord_shards_whole_and_not(made, tmp_path):
    shutil.copytree(made("imagenet-tfrecord"), tmp_path / "set")
    recipe("check", "imagenet-tfrecord", tmp_path / "set")
    os.truncate(tmp_path / "set/validation-00127-of-00128", 100)
    (file, found), = incomplete("imagenet-tfrecord", tmp_path / "set")
    assert file == "validation-00127-of-00128" and "cut off" in found


def test_voc_lacks_a_mask(made, tmp_path):
    folder = tmp_path / "VOCdevkit/VOC2012"
    shutil.copytree(made("voc-segmentation"), folder)
    (folder / "SegmentationClass/2008_000002.png").unlink()
    assert ("SegmentationClass/2008_000002.png", "is missing") in incomplete(
        "voc-segmentation", folder)
    assert f"penstock recipe check voc-segmentation {folder}\n" in recipe(
        "check", "voc-segmentation", tmp_path, status=1)
    (folder / "ImageSets/Segmentation/train.txt").unlink()
    assert f"{folder}/ImageSets/Segmentation/train.txt" in recipe(
        "show", "voc-segmentation", folder, status=1)


def test_a_spec_may_lie_beside_its_data(made, tmp_path):
    folder = tmp_path / "set"
    shutil.copytree(made("cifar100"), folder)
    spec = folder / "train.yaml"
    spec.write_text(recipe("show", "cifar100", cwd=folder).replace("size: 128", "size: 4"))
    subprocess.run([PENSTOCK, "check", spec], timeout=60, check=True, capture_output=True)


def test_wrong_words_are_told(tmp_path):
    assert "there is no recipe 'nist'; there are c4, cifar10, " in recipe(
        "show", "nist", status=1)
    assert "mnist has no split 'validation', but train and test" in recipe(
        "check", "mnist", tmp_path, "--split", "validation", status=1)
    assert f"'{tmp_path}/none'" in recipe("check", "mnist", tmp_path / "none", status=1)
    assert "subcommand is required" in recipe(status=2)
    assert "PATH is required" in recipe("check", "mnist", status=2)
