"""Promise: what `penstock check --all` lists of damaged data, Dataset.exclude leaves out:
a training then has all other records, and on_error has nothing to do."""

import json
import os
import subprocess
import sys

import numpy as np
import penstock
import pytest

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """60 pictures, of which 4, 31 and 59 are broken in different ways."""
    from PIL import Image

    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "train" / "cats"
    folder.mkdir(parents=True)
    for i in range(60):
        pixels = np.random.default_rng(i).integers(0, 256, (32, 32, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{i:02}.png")
    (folder / "04.png").write_bytes(b"no picture")
    (folder / "31.png").write_bytes((folder / "31.png").read_bytes()[:1000])
    (folder / "59.png").write_bytes(b"")
    return penstock.Dataset.image_folder(tmp_path / "train").map(
        penstock.decode_image(16)).shuffle(3).batch(16)


def check_all(folder, dataset, *arguments):
    (folder / "spec.yaml").write_text(dataset.to_yaml())
    return subprocess.run([PENSTOCK, "check", "--all", "spec.yaml", *arguments],
                          cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True)


def ids(reader):
    return sorted(int(i) for batch in reader for i in batch.ids)


def test_a_training_without_the_broken_records(attach, pictures, tmp_path):
    done = check_all(tmp_path, pictures)
    assert done.returncode == 1, done.stderr
    assert "broken.txt: 3 of 60 records are broken" in done.stdout
    lines = (tmp_path / "broken.txt").read_text().splitlines()[1:]
    assert [int(line.split("\t")[0]) for line in lines] == [4, 31, 59]
    for line, name in zip(lines, ("04.png", "31.png", "59.png")):
        assert name in line
    left = pictures.to_dict()
    left["select"] = [{"exclude": "broken.txt"}]
    wanted = [i for i in range(60) if i not in (4, 31, 59)]
    (tmp_path / "left.yaml").write_text(json.dumps(left))
    assert ids(attach("left.yaml", job="spec")) == wanted
    dataset = penstock.Dataset.image_folder(tmp_path / "train").exclude("broken.txt").map(
        penstock.decode_image(16)).batch(16)
    assert dataset.to_dict()["select"] == [{"exclude": str(tmp_path / "broken.txt")}]
    assert ids(attach(dataset, job="method")) == wanted
    # A file keeps its relative path.
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "spec.yaml").write_text(
        "dataset: d\nsource: {range: 9}\nbatch: {size: 2}\nselect:\n"
        "- exclude: list\n- exclude: {records: more}\n")
    (tmp_path / "sub" / "list").write_text("2 mine\n")
    (tmp_path / "sub" / "more").write_text("7\n")
    assert ids(attach(penstock.Dataset.from_file("sub/spec.yaml"), job="file")) == [
        0, 1, 3, 4, 5, 6, 8]


def test_a_list_of_other_pictures_is_refused(attach, pictures, tmp_path):
    assert check_all(tmp_path, pictures, "--out", "list").returncode == 1
    (tmp_path / "train" / "cats" / "59.png").unlink()
    dataset = penstock.Dataset.image_folder(tmp_path / "train").exclude("list").map(
        penstock.decode_image(16)).batch(16)
    with pytest.raises(penstock.FailedPrecondition,
                       match="was made of 60 records, and the source has 59: .*; run "
                             "`penstock check --all` again"):
        attach(dataset)


def test_a_function_that_fails_is_told_of_its_record(pictures, tmp_path, monkeypatch):
    (tmp_path / "steps.py").write_text(
        "def step(row):\n"
        "    if row['value'] == 5:\n"
        "        raise ValueError('five is right out')\n"
        "    return {'value': row['value']}\n")
    monkeypatch.setenv("PENSTOCK_PYTHON_PATH", str(tmp_path))
    dataset = penstock.Dataset.range(9).map(penstock.python("steps:step")).batch(2)
    done = check_all(tmp_path, dataset, "--json")
    assert done.returncode == 1, done.stderr
    (line,) = (tmp_path / "broken.txt").read_text().splitlines()[1:]
    assert line.startswith("5\tsample 5 in ") and "ValueError" in line


def test_what_is_excluded_need_not_be_readable_for_a_column(attach, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"id": i, "tokens": [i] * (i % 9)}) for i in range(40)]
    lines[5], lines[7] = lines[5][:-4], json.dumps({"id": 7, "tokens": [7] * 50})
    (tmp_path / "rows.jsonl").write_text("\n".join(lines) + "\n")
    rows = penstock.Dataset.json_lines(
        "rows.jsonl", {"id": {"dtype": "int64"},
                       "tokens": {"dtype": "int32", "max_length": 10}})
    buckets = {"buckets": penstock.buckets("tokens.length", count=3)}
    with pytest.raises(penstock.DataLoss, match="or begin `select` with `exclude`"):
        attach(rows.batch(4, **buckets))
    for select in (rows, rows.filter("id", min=3)):
        done = check_all(tmp_path, select.batch(4, **buckets), "--out", "broken.txt")
        assert done.returncode == 1, done.stderr
        listed = (tmp_path / "broken.txt").read_text().splitlines()[1:]
        assert [line.split()[0] for line in listed] == ["5", "7"]
    good = rows.exclude("broken.txt")
    left = [i for i in range(40) if i not in (5, 7)]
    assert sorted(ids(attach(good.batch(4, **buckets), job="a"))) == left
    again = attach(good.filter("id", min=3).batch(4, **buckets), job="b")
    assert sorted(ids(again)) == left[3:]
