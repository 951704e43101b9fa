"""Promise: `penstock peek --epoch E --row N` makes the row that a training has there,
bit for bit: shuffled, augmented, mixed in pairs, in epochs that wrap, in batches of
like length or of one part, with files divided over ranks."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import penstock
import pytest

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
RECORDS = 45


@pytest.fixture
def data(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    for part in range(3):
        np.save(f"image-{part}.npy",
                rng.integers(0, 256, (RECORDS // 3, 9, 8, 3), dtype=np.uint8))
        np.save(f"label-{part}.npy", rng.integers(0, 10, RECORDS // 3))


def pictures():
    return penstock.Dataset.npy({"image": "image-*.npy", "label": "label-*.npy"})


AUGMENT = (penstock.flip(), penstock.crop("random_pixels", 6),
           penstock.normalize(mean=[100, 90, 80], std=[60, 50, 40]))
DATASETS = {
    "shuffled": lambda: pictures().shuffle(5).map(*AUGMENT).batch(8).repeat(3),
    "dropped": lambda: pictures().shuffle(5).map(*AUGMENT).batch(
        8, last="drop").repeat(3),
    "wrapped": lambda: pictures().shuffle(5).map(*AUGMENT).batch(
        8).steps_per_epoch(7).repeat(3),
    "selected": lambda: pictures().skip(3).times(2).shuffle(5).map(
        *AUGMENT).batch(8).repeat(3),
    "mixed up": lambda: pictures().shuffle(5).map(
        *AUGMENT, penstock.one_hot(10), penstock.mixup(0.8)).batch(7).repeat(3),
    "of files": lambda: pictures().shuffle(5).map(*AUGMENT).batch(
        8).shard_policy("file").repeat(3),
    "by part": lambda: penstock.Dataset.mix(
        [pictures().take(20).batch(4), pictures().skip(20).batch(6)]).shuffle(5).map(
        *AUGMENT).repeat(3),
}


def sequence(readers):
    """(epoch, sample, {feature: array}) of each row, in the order of the global steps."""
    return [(batch.epoch, int(sample), {name: np.array(batch[name][i]) for name in batch})
            for step in zip(*readers) for batch in step
            for i, sample in enumerate(batch.ids)]


def peek(folder, spec, *arguments):
    (folder / "spec.yaml").write_text(spec.to_yaml())
    return subprocess.run([PENSTOCK, "peek", "spec.yaml", *map(str, arguments)],
                          cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)


@pytest.mark.parametrize("name", DATASETS)
def test_a_row_is_what_was_delivered_bit_for_bit(attach_all, data, tmp_path, name):
    dataset = DATASETS[name]()
    ranks = 3 if name == "of files" else 1
    rows = sequence(attach_all(dataset, ranks, "whole"))
    assert {epoch for epoch, *_ in rows} == {0, 1, 2}
    per_epoch = len(rows) // 3
    for epoch, row in ((0, 0), (0, per_epoch - 1), (1, 11), (2, per_epoch // 2)):
        done = peek(tmp_path, dataset, "--epoch", epoch, "--row", row, "--ranks", ranks,
                    "--npz", "row.npz")
        assert done.returncode == 0, done.stderr
        _, sample, wanted = rows[epoch * per_epoch + row]
        assert re.search(rf"\nsample {sample} in .*\n", done.stdout), done.stdout
        with np.load("row.npz") as found:
            assert sorted(found) == sorted(wanted)
            for feature, values in wanted.items():
                assert found[feature].dtype == values.dtype
                assert found[feature].shape == values.shape
                assert found[feature].tobytes() == values.tobytes(), (epoch, row)


def test_lists_are_whole_and_of_their_bucket(attach, data, tmp_path):
    lengths = np.random.default_rng(2).integers(1, 70, 100)
    lines = [{"tokens": list(range(n)), "text": "x" * n} for n in lengths]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    dataset = penstock.Dataset.json_lines("rows.jsonl", {
        "tokens": {"dtype": "int32", "max_length": 80},
        "text": {"max_bytes": 80}}).shuffle(1).batch(
            8, buckets=penstock.buckets("tokens.length", count=3)).repeat(2)
    rows = sequence([attach(dataset)])
    for row in (0, 13, 199):
        done = peek(tmp_path, dataset, "--epoch", row // 100, "--row", row % 100,
                    "--npz", "row.npz")
        assert done.returncode == 0, done.stderr
        _, sample, wanted = rows[row]
        assert "'" + "x" * lengths[sample] + "'" in done.stdout
        with np.load("row.npz") as found:
            for feature, values in wanted.items():
                assert np.array_equal(found[feature], values)


def test_spectrograms_of_any_length_are_drawn(data, tmp_path):
    lines = [{"mel": [[float(i + j) for j in range(12)] for i in range(n)]}
             for n in (3, 9, 5)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, lines)))
    dataset = penstock.Dataset.json_lines("rows.jsonl", {
        "mel": {"dtype": "float32", "shape": [12], "max_length": 10}}).batch(3)
    done = peek(tmp_path, dataset)
    assert "sheet.png: 3 of 3 rows of feature mel float32 [10, 12], " in done.stdout
    one = peek(tmp_path, dataset, "--row", 1, "--out", "row.png")
    assert "row.png: 16 x 14 pixels" in one.stdout, one.stdout + one.stderr


def test_a_record_is_that_of_the_first_epoch(attach, data, tmp_path):
    dataset = pictures().shuffle(5).map(*AUGMENT).batch(8)
    for _, sample, wanted in sequence([attach(dataset)])[:3]:
        done = peek(tmp_path, dataset, "--record", sample,
                    "--npz", "row.npz", "--out", "row.png")
        assert done.returncode == 0, done.stderr
        assert "row.png: 10 x 10 pixels" in done.stdout
        with np.load("row.npz") as found:
            assert found["image"].tobytes() == wanted["image"].tobytes()


def test_every_dtype_is_loaded(data, tmp_path):
    values = {dtype: np.arange(6).reshape(2, 3).astype(dtype)
              for dtype in ("bool", "uint8", "int8", "int16", "int32", "int64", "float16",
                            "float32", "float64")}
    for dtype, array in values.items():
        np.save(f"{dtype}.npy", array)
    files = {dtype: f"{dtype}.npy" for dtype in values}
    dataset = penstock.Dataset.npy({**files, "half": "float32.npy"}).map(
        penstock.cast("bfloat16", feature="half")).batch(2)
    assert peek(tmp_path, dataset, "--row", 1, "--npz", "row.npz").returncode == 0
    with np.load("row.npz") as found:
        for dtype, array in values.items():
            assert found[dtype].dtype == array.dtype
            assert np.array_equal(found[dtype], array[1])
        halves = found["half"]
    assert (halves.view("<u2").astype("<u4") << 16).view("<f4").tolist() == [3, 4, 5]
