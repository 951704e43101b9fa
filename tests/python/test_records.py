"""Sources tfrecord and webdataset beside the formats' own readers: the same values in
the same order, and a job that goes on in the middle of a shard."""

import io
import json
import os
import subprocess
import tarfile

import numpy as np
import penstock
import pytest


def rows_of(reader, *features):
    """The features of every row, in order; the reader's epochs one after the other."""
    rows = []
    for epoch in reader.epochs():
        for batch in epoch:
            rows += zip(*(batch[feature].tolist() for feature in features))
    return rows


def text_of(values, size):
    return bytes(values[:size]).decode()


def write_shard(path, samples):
    """A tar file of {name: bytes} members."""
    with tarfile.open(path, "w") as tar:
        for name, content in samples.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))


@pytest.fixture
def shards(tmp_path):
    """Three shards of 7 samples, numbered through."""
    for shard in range(3):
        numbers = range(7 * shard, 7 * shard + 7)
        write_shard(tmp_path / f"s-{shard:03}.tar", {
            f"{n:04}.{extension}": content for n in numbers
            for extension, content in (("cls", str(n).encode()),
                                       ("txt", b"sample %d" % n))})
    return tmp_path / "s-{000..002}.tar"


def dataset_of(shards):
    return penstock.Dataset.webdataset(
        shards, {"n": {"member": "cls", "dtype": "int64", "shape": []},
                 "text": {"member": "txt", "max_bytes": 16}})


def test_samples_of_all_shards_come_in_order(attach, shards):
    reader = attach(dataset_of(shards).batch(4, last="partial"))
    rows = rows_of(reader, "n", "text", "text_bytes")
    assert [n for n, _, _ in rows] == list(range(21))
    assert [text_of(text, size) for _, text, size in rows] == [
        f"sample {n}" for n in range(21)]


def test_a_job_goes_on_within_a_shard(attach, shards, request):
    dataset = dataset_of(shards).shuffle(seed=3).batch(3).repeat(2)
    whole = rows_of(attach(dataset, job="whole-" + request.node.name[:40]), "n")
    assert sorted(whole) == sorted([(n,) for n in range(21)] * 2)
    first = attach(dataset, job="first-" + request.node.name[:40])
    taken = []
    for _ in range(5):
        taken += first.next()["n"].tolist()
    state = json.loads(json.dumps(first.state_dict()))
    first.close()
    second = attach(dataset, state=state, job="second-" + request.node.name[:40])
    taken += [n for n, in rows_of(second, "n")]
    assert taken == [n for n, in whole]


def test_a_broken_sample_is_skipped(attach, tmp_path):
    write_shard(tmp_path / "a.tar", {"0.cls": b"0", "1.cls": b"one", "2.cls": b"2",
                                     "3.txt": b""})
    dataset = penstock.Dataset.webdataset(
        tmp_path / "*.tar", {"cls": {"dtype": "int32", "shape": []}},
        on_missing="skip").batch(4)
    with pytest.raises(penstock.DataLoss, match="wanted a number that fits int32, found 'one'"):
        rows_of(attach(dataset, job="fails"), "cls")
    skipped = attach(dataset.on_error("skip"), job="skips")
    assert rows_of(skipped, "cls") == [(0,), (2,)]


def test_a_join_of_pictures_and_captions(attach, tmp_path):
    """Shards of pictures and lines of captions in another order, by key."""
    for shard in range(2):
        write_shard(tmp_path / f"p-{shard}.tar", {
            f"dir/{n:03}.npy": b"%03d" % n for n in range(20 * shard, 20 * shard + 20)})
    order = np.random.default_rng(3).permutation(60)
    (tmp_path / "captions.jsonl").write_text("".join(
        json.dumps({"id": f"dir/{n:03}", "caption": "word " * int(n % 7)}) + "\n"
        for n in order if n not in (5, 21)))
    pictures = penstock.Dataset.webdataset(tmp_path / "p-{0..1}.tar", {
        "id": {"member": "__key__", "max_bytes": 16},
        "value": {"member": "npy", "dtype": "uint8", "shape": [3]}})
    captions = penstock.Dataset.json_lines(tmp_path / "captions.jsonl", {
        "id": {"max_bytes": 16}, "caption": {"max_bytes": 64}})

    def joined(**options):
        return penstock.Dataset.zip([pictures, captions], prefixes=[None, "c_"], by="id",
                                    **options)

    with pytest.raises(penstock.InvalidArgument,
                       match="2 records of parts.0. have no record of the same id .*"
                             "'dir/005' .*'dir/021' .*on_missing: skip"):
        attach(joined().batch(4), job="fails")
    dataset = joined(on_missing="skip").shuffle(seed=2).batch(4, last="partial")
    columns = ("id", "id_bytes", "value", "c_id", "c_caption", "c_caption_bytes")
    rows = rows_of(attach(dataset, job="whole"), *columns)
    wanted = [n for n in range(40) if n not in (5, 21)]
    assert sorted(int(bytes(row[2])) for row in rows) == wanted
    for name, size, value, other, caption, caption_size in rows:
        n = int(bytes(value))
        assert text_of(name, size) == text_of(other, size) == f"dir/{n:03}"
        assert text_of(caption, caption_size) == "word " * (n % 7)
    first = attach(dataset, job="first")
    taken = [first.next()["value"].tolist() for _ in range(3)]
    second = attach(dataset, state=first.state_dict(), job="second")
    assert sum(taken, []) + [value for value, in rows_of(second, "value")] == [
        row[2] for row in rows]


@pytest.mark.parametrize("options", [
    ["--format=gnu"], ["--format=posix"], ["--format=posix", "--sparse-version=0.0"]])
def test_gnu_tar_agrees_but_for_sparse_files(attach, tmp_path, options, request):
    name = "a/" * 60 + "7"
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / (name + ".cls")).write_text("7")
    (tmp_path / (name + ".txt")).write_text("text")

    def pack(*more):
        subprocess.run(["tar", *options, *more, "-cf", "a.tar", "a"], cwd=tmp_path,
                       check=True)
        return dataset_of(tmp_path / "a.tar").batch(1)

    rows = rows_of(attach(pack(), job="a" + request.node.name[:40]), "n", "text_bytes")
    assert rows == [(7, 4)]
    os.truncate(tmp_path / (name + ".txt"), 10 << 20)
    with pytest.raises(penstock.InvalidArgument,
                       match=r"a\.tar, offset \d+: member '.*7\.txt' is sparse"):
        attach(pack("--sparse"), job="b" + request.node.name[:40])


def test_a_shard_that_was_cut_at_a_member_is_warned_of(attach, shards, tmp_path):
    os.truncate(tmp_path / "s-001.tar", 12 * 1024)
    with pytest.warns(UserWarning, match=r"s-001\.tar, offset 12288: the file ends without "
                                         "the zeros that end an archive"):
        reader = attach(dataset_of(shards).batch(4))
    assert len(rows_of(reader, "n")) == 7 + 6 + 7


def test_webdataset_agrees(attach, tmp_path):
    wds = pytest.importorskip("webdataset")
    rng = np.random.default_rng(1)
    with wds.ShardWriter(str(tmp_path / "w-%06d.tar"), maxcount=10, verbose=0) as writer:
        for i in range(35):
            writer.write({"__key__": f"a/{i:05}", "cls": int(rng.integers(-9, 9)),
                          "npy": rng.random((2, 3), np.float32),
                          "txt": "text " * int(rng.integers(0, 4))})
    judge = list(wds.WebDataset(
        [str(tmp_path / f"w-{i:06}.tar") for i in range(4)],
        shardshuffle=False).decode().to_tuple("cls", "npy", "txt"))
    reader = attach(penstock.Dataset.webdataset(
        tmp_path / "w-{000000..000003}.tar",
        {"cls": {"dtype": "int64", "shape": []},
         "npy": {"dtype": "float32", "shape": [2, 3]},
         "txt": {"max_bytes": 32}}).batch(8))
    rows = rows_of(reader, "cls", "npy", "txt", "txt_bytes")
    assert len(rows) == len(judge) == 35
    for (label, array, text, size), wanted in zip(rows, judge):
        assert (label, text_of(text, size)) == (wanted[0], wanted[2])
        assert np.array_equal(np.array(array, np.float32), wanted[1])


def test_tensorflow_agrees(attach, tmp_path):
    tf = pytest.importorskip("tensorflow")
    rng = np.random.default_rng(2)
    for shard in range(3):
        with tf.io.TFRecordWriter(str(tmp_path / f"t-{shard}")) as writer:
            for _ in range(10):
                writer.write(tf.train.Example(features=tf.train.Features(feature={
                    "image/class/label": tf.train.Feature(int64_list=tf.train.Int64List(
                        value=[int(rng.integers(-2**62, 2**62))])),
                    "floats": tf.train.Feature(float_list=tf.train.FloatList(
                        value=rng.random(5))),
                    "raw": tf.train.Feature(bytes_list=tf.train.BytesList(
                        value=[rng.integers(0, 99, (2, 2), np.int16).tobytes()])),
                    "text": tf.train.Feature(bytes_list=tf.train.BytesList(
                        value=[b"x" * int(rng.integers(0, 20))])),
                    **({} if rng.integers(2) else {
                        "maybe": tf.train.Feature(int64_list=tf.train.Int64List(
                            value=[5]))}),
                })).SerializeToString())
    files = sorted(str(path) for path in tmp_path.glob("t-*"))
    judge = [tf.io.parse_single_example(record, {
        "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        "floats": tf.io.FixedLenFeature([5], tf.float32),
        "raw": tf.io.FixedLenFeature([], tf.string),
        "text": tf.io.FixedLenFeature([], tf.string),
        "maybe": tf.io.FixedLenFeature([], tf.int64, -1),
    }) for record in tf.data.TFRecordDataset(files)]
    reader = attach(penstock.Dataset.tfrecord(tmp_path / "t-*", {
        "label": {"key": "image/class/label", "dtype": "int64", "shape": []},
        "floats": {"dtype": "float32", "shape": [5]},
        "raw": {"dtype": "int16", "shape": [2, 2]},
        "text": {"max_bytes": 20},
        "maybe": {"dtype": "int32", "shape": [], "default": -1}}).batch(7))
    rows = rows_of(reader, "label", "floats", "raw", "text", "text_bytes", "maybe")
    assert len(rows) == len(judge) == 30
    for (label, floats, raw, text, size, maybe), wanted in zip(rows, judge):
        assert label == int(wanted["image/class/label"])
        assert np.array_equal(np.array(floats, np.float32), wanted["floats"].numpy())
        assert np.array_equal(np.array(raw, np.int16).tobytes(), wanted["raw"].numpy())
        assert text_of(text, size) == wanted["text"].numpy().decode()
        assert maybe == int(wanted["maybe"])


def test_the_proposed_features_read_every_record(attach, tmp_path):
    tf = pytest.importorskip("tensorflow")
    yaml = pytest.importorskip("yaml")

    def feature(**lists):
        (kind, values), = lists.items()
        wrap = {"bytes_list": tf.train.BytesList, "int64_list": tf.train.Int64List,
                "float_list": tf.train.FloatList}[kind]
        return tf.train.Feature(**{kind: wrap(value=values)})

    with tf.io.TFRecordWriter(str(tmp_path / "t")) as writer:
        for i in range(200):
            writer.write(tf.train.Example(features=tf.train.Features(feature={
                "caption": feature(bytes_list=[b"word " * (i % 9)]),  # at first empty
                "image": feature(bytes_list=[tf.io.encode_png(
                    np.full((4, 4, 3), i, np.uint8)).numpy()]),
                "label": feature(int64_list=[i]),
                "box/xy": feature(float_list=[i / 2, 1.0]),
                "words": feature(int64_list=range(i % 5)),
                **({"weight": feature(float_list=[0.5])} if i % 2 else {}),
            })).SerializeToString())
    with pytest.raises(penstock.InvalidArgument) as asked:
        attach(penstock.Dataset.tfrecord(tmp_path / "t").batch(7))
    told = str(asked.value)
    assert "by 64 records: features: " in told
    features = yaml.safe_load(told[told.index("{", told.index("features: ")):])
    assert features == {
        "box_xy": {"key": "box/xy", "dtype": "float32", "shape": [2]},
        "caption": {"max_bytes": 128}, "image": {"encoded": True},
        "label": {"dtype": "int64", "shape": []},
        "weight": {"dtype": "float32", "shape": [], "default": 0},
        "words": {"dtype": "int64", "max_length": 8}}
    reader = attach(penstock.Dataset.tfrecord(tmp_path / "t", features).map(
        penstock.decode_image(4, exact=True)).batch(7))
    rows = rows_of(reader, "label", "image", "weight", "caption_bytes", "words.length")
    assert [label for label, *_ in rows] == list(range(200))
    for label, image, weight, caption, words in rows:
        assert (np.array(image) == label).all()
        assert (weight, caption, words) == (0.5 if label % 2 else 0, 5 * (label % 9),
                                            label % 5)
