"""Promise: what `penstock convert` writes gives the same rows as what it read, to
Penstock and to the formats' own readers; files pass through byte for byte. A run that
was killed and started again leaves the shards of one that was not; nothing is ever
half written, and nothing else in a folder is touched."""

import hashlib
import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import time

import numpy as np
import penstock
import pytest

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
MANIFEST = "penstock-convert.json"
ROWS = 700


def start(*arguments, **options):
    return subprocess.Popen([PENSTOCK, "convert", *map(str, arguments)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options)


def run(*arguments, **options):
    process = start(*arguments, **options)
    out, err = process.communicate(timeout=120)
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def convert(*arguments):
    """What it tells, as JSON."""
    result = run(*arguments, "--json")
    assert result.returncode == 0, (result.stdout, result.stderr)
    assert result.stderr == ""  # no bar in no terminal
    return json.loads(result.stdout)


def rows_of(reader):
    rows = []
    for epoch in reader.epochs():
        for batch in epoch:
            arrays = {name: np.array(batch[name]) for name in batch.keys()}
            rows += [{name: array[i] for name, array in arrays.items()}
                     for i in range(batch.rows)]
    return rows


def assert_same_rows(found, wanted):
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted):
        assert a.keys() == b.keys()
        for name in a:
            assert a[name].dtype == b[name].dtype, name
            np.testing.assert_array_equal(a[name], b[name], name)


def shards_in(folder):
    return {each.name: hashlib.sha256(each.read_bytes()).hexdigest()
            for each in sorted(folder.glob("[0-9]*")) if each.suffix != ".part"}


def values(i):
    return {"text": "wörd " * (i % 7), "label": i % 10, "x": i / 3, "half": float(i % 100),
            "big": 2**53 - 1 - i if i % 2 else i - 2**53 + 1, "ok": i % 3 == 0,
            "tokens": list(range(i % 5)), "pairs": [[i, 1]] * (i % 3), "v": [i, 0.5, -1]}


@pytest.fixture
def table(tmp_path):
    """A spec of lines: texts, numbers, lists and arrays."""
    (tmp_path / "rows.jsonl").write_text("".join(
        json.dumps(values(i)).replace("0.3333333333333333", "NaN") + "\n"
        for i in range(ROWS)))
    spec = tmp_path / "table.yaml"
    spec.write_text("""
dataset: table
source:
  json_lines:
    files: rows.jsonl
    fields:
      text: {max_bytes: 64}
      label: {dtype: int64}
      x: {dtype: float64}
      half: {dtype: float16}
      big: {dtype: int64}
      ok: {dtype: bool}
      tokens: {dtype: int32, max_length: 8}
      pairs: {dtype: int16, max_length: 3, shape: [2]}
      v: {dtype: float32, shape: [3]}
batch: {size: 64}
shuffle: {seed: 3}
epochs: 4
""")
    return spec


@pytest.fixture
def photos(tmp_path):
    """A spec of files that differ in size and format, one of 3 MB and many small ones
    behind it, and the files."""
    rng = random.Random(1)
    heads = {"jpg": b"\xff\xd8\xff", "png": b"\x89PNG\r\n\x1a\n", "webp": b"RIFF\0\0\0\0WEBP"}
    files = {}
    for number in range(2600):
        extension = list(heads)[number % 3]
        name = f"{'cat' if number % 2 else 'dog'}/a.{number}.{extension}"
        files[name] = heads[extension] + rng.randbytes(3_000_000 if number == 31 else number % 97 * 50)
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files[name])
    spec = tmp_path / "photos.yaml"
    spec.write_text("dataset: photos\nsource: {image_folder: {path: photos}}\n"
                    "map: [decode_image: {size: 8}]\nbatch: {size: 8}\n")
    return spec, dict(sorted(files.items()))


@pytest.mark.parametrize("to", ["webdataset", "mds", "fixed", "parquet"])
def test_rows_are_the_same(attach, table, tmp_path, to):
    if to == "parquet":
        pytest.importorskip("pyarrow")
    told = convert(table, "--to", to, "--out", tmp_path / "out", "--shard-size", "20K")
    assert told["rows"] == ROWS and told["broken"]["count"] == 0
    assert told["shards"] == len(shards_in(tmp_path / "out")) > 2
    in_order = tmp_path / "in_order.yaml"
    in_order.write_text(table.read_text().replace("shuffle: {seed: 3}\nepochs: 4\n", ""))
    assert_same_rows(rows_of(attach(tmp_path / "out" / "spec.yaml", job="read-" + to)),
                     rows_of(attach(in_order, job="as-it-was-" + to)))
    again = convert(table, "--to", to, "--out", tmp_path / "out", "--shard-size", "20K")
    assert again["rows_before"] == again["rows"] == ROWS


def test_files_pass_through_tar_files_with_their_names(attach, photos, tmp_path):
    spec, files = photos
    convert(spec, "--to", "webdataset", "--steps", 0, "--out", tmp_path / "out",
            "--shard-size", "1M")
    members = {}
    for shard in sorted((tmp_path / "out").glob("*.tar")):
        with tarfile.open(shard) as tar:
            members.update({each.name: tar.extractfile(each).read() for each in tar})
    wanted = {}
    for name, content in files.items():
        base, _, extension = name.rpartition(".")
        base = base.replace(".", "_")
        wanted[f"{base}.{extension}"] = content
        wanted[base + ".cls"] = b"0" if name.startswith("cat") else b"1"
    assert members == wanted


@pytest.mark.parametrize("tar_format", ["USTAR", "GNU", "PAX"])
def test_the_names_in_tar_files_stay(tmp_path, tar_format):
    names = ["a", "b/c", "/".join(["folder"] * 20) + "/d", "e"]
    with tarfile.open(tmp_path / "in.tar", "w",
                      format=getattr(tarfile, tar_format + "_FORMAT")) as tar:
        for name in names:
            for extension, content in (("jpg", b"\xff\xd8\xff" + name.encode()), ("cls", b"7")):
                info = tarfile.TarInfo(f"{name}.{extension}")
                info.size = len(content)
                tar.addfile(info, io.BytesIO(content))
    (tmp_path / "tar.yaml").write_text(
        "dataset: tar\nsource: {webdataset: {files: in.tar, features: {image: {member: jpg, "
        "encoded: true}, label: {member: cls, dtype: int64, shape: []}}}}\nbatch: {size: 2}\n")
    convert(tmp_path / "tar.yaml", "--to", "webdataset", "--out", tmp_path / "out")
    with tarfile.open(tmp_path / "out" / "000000.tar") as tar:
        members = {each.name: tar.extractfile(each).read() for each in tar}
    # A header of USTAR has the long name in two pieces: then samples are numbered.
    kept = names if tar_format != "USTAR" else [f"{i:09}" for i in range(4)]
    assert members == {
        f"{new}.{extension}": content for new, name in zip(kept, names)
        for extension, content in (("jpg", b"\xff\xd8\xff" + name.encode()), ("cls", b"7"))}


def test_mds_has_the_files_and_gives_them_back(photos, tmp_path):
    spec, files = photos
    convert(spec, "--to", "mds", "--steps", 0, "--out", tmp_path / "mds", "--shard-size", "1M")
    index = json.loads((tmp_path / "mds" / "index.json").read_text())
    assert index["shards"][0]["column_encodings"] == ["png", "int"]
    convert(tmp_path / "mds" / "spec.yaml", "--to", "webdataset", "--out", tmp_path / "out")
    with tarfile.open(tmp_path / "out" / "000000.tar") as tar:
        members = {each.name: tar.extractfile(each).read() for each in tar}
    assert [members[f"{i:09}.{name[-4:].lstrip('.')}"] for i, name in enumerate(files)] == list(
        files.values())


def test_pyarrow_agrees(photos, table, tmp_path):
    parquet = pytest.importorskip("pyarrow.parquet")
    spec, files = photos
    convert(spec, "--to", "parquet", "--steps", 0, "--out", tmp_path / "photos.parquet")
    found = parquet.read_table(tmp_path / "photos.parquet" / "000000.parquet").to_pydict()
    assert found["image"] == list(files.values())
    convert(table, "--to", "parquet", "--out", tmp_path / "out")
    found = parquet.read_table(tmp_path / "out" / "000000.parquet").to_pylist()
    assert [each | {"x": 0} for each in found] == [values(i) | {"x": 0} for i in range(ROWS)]


def test_webdataset_agrees(table, tmp_path):
    wds = pytest.importorskip("webdataset")
    convert(table, "--to", "webdataset", "--out", tmp_path / "out", "--shard-size", "100K")
    found = list(wds.WebDataset([str(each) for each in sorted((tmp_path / "out").glob("*.tar"))],
                                shardshuffle=False).decode())
    assert len(found) == ROWS
    for i, sample in enumerate(found):
        wanted = values(i)
        assert sample["__key__"] == f"{i:09}"
        assert sample["txt"] == wanted["text"] and sample["cls"] == wanted["label"]
        assert sample["json"]["big"] == wanted["big"]
        assert sample["tokens.npy"].tolist() == wanted["tokens"]
        assert sample["pairs.npy"].reshape(-1, 2).tolist() == wanted["pairs"]
        assert sample["v.npy"].tolist() == wanted["v"]


@pytest.mark.parametrize("dtype", ["uint16", "int32", "int64"])
def test_tokens_are_those_of_all_rows(attach, table, tmp_path, dtype):
    told = convert(table, "--to", "tokens", "--feature", "tokens", "--dtype", dtype,
                   "--out", tmp_path / "out", "--shard-size", "1K")
    wanted = [token for i in range(ROWS) for token in values(i)["tokens"]]
    found = np.concatenate([np.fromfile(tmp_path / "out" / name, dtype)
                            for name in shards_in(tmp_path / "out")])
    assert told["rows"] == ROWS and found.tolist() == wanted
    row = rows_of(attach(tmp_path / "out" / "spec.yaml", job=dtype))[0]
    assert row["input"].tolist() == wanted[:len(row["input"])]


def test_a_token_that_does_not_fit_is_told(tmp_path):
    (tmp_path / "t.jsonl").write_text('{"t": [1, 65535]}\n{"t": [65536]}\n')
    (tmp_path / "t.yaml").write_text(
        "dataset: t\nsource: {json_lines: {files: t.jsonl, fields: {t: {dtype: int32, "
        "max_length: 4}}}}\nbatch: {size: 2}\n")
    result = run(tmp_path / "t.yaml", "--to", "tokens", "--dtype", "uint16", "--out",
                 tmp_path / "out")
    assert result.returncode == 1
    assert "sample 1: token 65536 does not fit uint16: give --dtype" in result.stderr
    assert shards_in(tmp_path / "out") == {}


SLOW = '''
import time
def same(row):
    time.sleep(0.002)
    return dict(row)
'''


@pytest.mark.parametrize("to", ["webdataset", "mds", "fixed", "parquet"])
def test_a_killed_run_goes_on(tmp_path, monkeypatch, to):
    """Broken rows are left out, so that shards end anywhere in a batch."""
    if to == "parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.setenv("PENSTOCK_PYTHON_PATH", str(tmp_path))
    (tmp_path / "rows.csv").write_text("x,t\n" + "".join(
        f"{'oh' if i % 13 == 5 else i},{'a' * (i % 50)}\n" for i in range(800)))
    spec = tmp_path / "csv.yaml"
    spec.write_text(
        "dataset: csv\nsource: {csv: {files: rows.csv, columns: {x: {dtype: int64}, t: "
        "{max_bytes: 64}}}}\nmap: [python: {function: \"slow:same\"}]\nbatch: {size: 9}\n"
        "on_error: skip\n")
    size = {"webdataset": "60K", "fixed": "4K"}.get(to, "3K")
    arguments = (spec, "--to", to, "--shard-size", size, "--out")
    whole = convert(*arguments, tmp_path / "whole")
    assert whole["rows"] == 800 - 62 and whole["broken"]["count"] == 62
    for _ in range(2):
        process = start(*arguments, tmp_path / "out")
        wanted = len(shards_in(tmp_path / "out")) + whole["shards"] // 5
        while len(shards_in(tmp_path / "out")) < wanted:
            assert process.poll() is None, process.communicate()
            time.sleep(0.005)
        process.send_signal(signal.SIGKILL)
        process.wait()
    rest = convert(*arguments, tmp_path / "out")
    assert 0 < rest["rows_before"] < rest["rows"] == whole["rows"]
    assert shards_in(tmp_path / "out") == shards_in(tmp_path / "whole")
    for name in ("spec.yaml", "index.json", MANIFEST):
        if (tmp_path / "whole" / name).exists():
            assert (tmp_path / "out" / name).read_text() == (tmp_path / "whole" / name).read_text()
    assert not list((tmp_path / "out").glob("*.part"))


def test_a_run_goes_on_with_smaller_batches(tmp_path):
    """Within a batch of small files, whose rows then need more room."""
    (tmp_path / "files").mkdir()
    for i in range(300):
        (tmp_path / "files" / f"{i:03}.jpg").write_bytes(
            b"\xff\xd8\xff" + bytes([i % 251]) * (500_000 if i == 100 else 500))
    spec = tmp_path / "files.yaml"
    spec.write_text("dataset: files\nsource: {image_folder: {path: files, labels: none}}\n"
                    "batch: {size: 8}\n")
    out = tmp_path / "out"
    arguments = (spec, "--to", "webdataset", "--shard-size", "20K", "--out", out)
    convert(*arguments)
    whole = shards_in(out)
    manifest = json.loads((out / MANIFEST).read_text())
    del manifest["shards"][4:]
    rows = sum(rows for rows, _ in manifest["shards"])
    assert rows == 80  # of batches of 60, with the next room
    manifest.update(row=0, taken=rows, rows=rows, done=False)
    (out / MANIFEST).write_text(json.dumps(manifest))
    for name in list(whole)[4:]:
        os.unlink(out / name)
    assert convert(*arguments)["rows_before"] == rows
    assert shards_in(out) == whole


def test_a_full_disk_leaves_no_half_shard(table, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    script = (f"mount -t tmpfs -o size=200K none {out} || exit 77; "
              f"{PENSTOCK} convert {table} --to webdataset --shard-size 60K --out {out}; "
              f"echo status $?; ls {out}")
    result = subprocess.run(["unshare", "-Urm", "sh", "-c", script], capture_output=True,
                            text=True, timeout=60)
    if result.returncode == 77 or "unshare" in result.stderr:
        pytest.skip("no tmpfs can be mounted here: " + result.stderr)
    assert "status 1" in result.stdout
    assert "No space left on device" in result.stderr
    assert "goes on there" in result.stderr
    names = result.stdout.split("status 1")[1].split()
    assert names[0] == "000000.tar" and MANIFEST in names
    assert not [name for name in names if name.endswith(".part")]


def test_what_is_refused(table, photos, tmp_path):
    def fails(*arguments, status=1):
        result = run(*arguments)
        assert result.returncode == status, result.stdout
        return result.stderr

    out = tmp_path / "out"
    out.mkdir()
    (out / "mine").write_text("mine")
    assert "has something else in it, such as 'mine'" in fails(
        table, "--to", "mds", "--out", out)
    assert [each.name for each in out.iterdir()] == ["mine"]
    shutil.rmtree(out)

    arguments = ("--to", "mds", "--shard-size", "20K", "--out", out)
    convert(table, *arguments)
    assert "another --shard-size" in fails(table, "--to", "mds", "--out", out)
    assert "another --to" in fails(table, "--to", "fixed", "--shard-size", "20K", "--out", out)
    before = shards_in(out)
    text = table.read_text()
    table.write_text(text.replace("max_bytes: 64", "max_bytes: 65"))
    assert "another spec" in fails(table, *arguments)
    table.write_text(text)
    with open(tmp_path / "rows.jsonl", "a") as file:
        file.write(json.dumps(values(0)) + "\n")
    assert "other data" in fails(table, *arguments)
    assert shards_in(out) == before

    spec, _ = photos
    new = tmp_path / "new"
    assert "'image' is a picture or sound" in fails(
        spec, "--to", "fixed", "--steps", 0, "--out", new)
    spec.write_text(spec.read_text().replace("size: 8}]", "size: 8}, flip: {horizontal: 0.5}]"))
    assert "map[1].flip is random" in fails(spec, "--to", "fixed", "--out", new)
    assert "with --steps 1" in fails(spec, "--to", "fixed", "--out", new)
    fails(spec, "--to", "zip", "--out", new, status=2)
    table.write_text(text.replace(
        "      v: {", "      V: {dtype: float32, shape: [3], pointer: /v}\n      v: {"))
    assert "two features have the name 'v' in small letters" in fails(
        table, "--to", "webdataset", "--out", new)
    assert list(new.iterdir()) == []


def test_of_a_packed_spec_the_documents_are_written(attach, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"tokens": [1, 2, 3]}\n' * 20)
    spec = tmp_path / "spec.yaml"
    spec.write_text(penstock.Dataset.json_lines(tmp_path / "rows.jsonl", {
        "tokens": {"dtype": "int32", "max_length": 3}}).batch(
            4, pack=penstock.pack(16)).to_yaml())
    result = run(spec, "--to", "mds", "--out", tmp_path / "out")
    assert result.returncode == 0, result.stderr
    assert "20 rows" in result.stdout
    assert "the documents are written, each as a row, and not the sequences" in result.stderr
    assert len(rows_of(attach(tmp_path / "out" / "spec.yaml"))) == 20


def test_one_at_a_time(table, tmp_path, monkeypatch):
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.setenv("PENSTOCK_PYTHON_PATH", str(tmp_path))
    table.write_text(table.read_text() + "map: [python: {function: \"slow:same\"}]\n")
    arguments = (table, "--to", "mds", "--shard-size", "20K", "--out", tmp_path / "out")
    first = start(*arguments)
    while not (tmp_path / "out" / MANIFEST).exists():
        time.sleep(0.01)
    second = run(*arguments)
    assert second.returncode == 1
    assert "another `penstock convert` writes there" in second.stderr
    assert first.wait(60) == 0, first.stderr.read()


def test_what_has_no_room_is_told(attach, photos, tmp_path):
    _, files = photos
    folder = penstock.Dataset.image_folder(tmp_path / "photos").map(
        penstock.keep_encoded(max_bytes=1000)).batch(60)
    with pytest.raises(penstock.DataLoss, match="bytes; keep_encoded has room for 1000"):
        attach(folder, job="files").next()
    named = penstock.Dataset.image_folder(tmp_path / "photos", max_path_bytes=10).map(
        penstock.drop("image")).batch(60)
    with pytest.raises(penstock.DataLoss, match="a path of 1[0-9] bytes; max_path_bytes has room"):
        attach(named, job="names").next()
    row = attach(penstock.Dataset.image_folder(tmp_path / "photos", max_path_bytes=99).map(
        penstock.drop("image")).batch(2600), job="fits").next()
    assert [bytes(path[:size]).decode() for path, size in zip(
        row["path"], row["path_bytes"])] == list(files)


def test_a_broken_record_ends_it_and_may_be_left_out(tmp_path):
    (tmp_path / "rows.csv").write_text("x\n" + "".join(
        f"{'oh' if i == 700 else i}\n" for i in range(1000)))
    spec = tmp_path / "csv.yaml"
    text = ("dataset: csv\nsource: {csv: {files: rows.csv, columns: {x: {dtype: int64}}}}\n"
            "batch: {size: 9}\n")
    spec.write_text(text)
    arguments = (spec, "--to", "fixed", "--shard-size", "1K", "--out", tmp_path / "out")
    failed = run(*arguments)
    assert failed.returncode == 1 and "sample 700: " in failed.stderr
    spec.write_text(text + "on_error: skip\n")
    told = convert(*arguments)
    assert told["rows"] == 999 and told["broken"]["count"] == 1
    assert "sample 700: " in told["broken"]["first"][0]
    found = np.concatenate([np.fromfile(tmp_path / "out" / name, np.int64)
                            for name in shards_in(tmp_path / "out")])
    assert found.tolist() == [i for i in range(1000) if i != 700]
    os.unlink(tmp_path / "out" / "000001.bin")
    assert "000001.bin' is not there any more" in run(*arguments).stderr
    (tmp_path / "out" / MANIFEST).write_text("{}")
    assert "is no file of `penstock convert`" in run(*arguments).stderr


def test_a_feature_names_samples(tmp_path):
    """One that is called path is no name unless it is asked for."""
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(
        {"path": path, "n": n}) + "\n" for n, path in enumerate(["/a/../b.c", "x", "x", ""])))
    (tmp_path / "rows.yaml").write_text(
        "dataset: rows\nsource: {json_lines: {files: rows.jsonl, fields: {path: {max_bytes: 16}, "
        "n: {dtype: int64}}}}\nbatch: {size: 2}\n")

    def names(folder, *key):
        convert(tmp_path / "rows.yaml", "--to", "webdataset", "--out", tmp_path / folder, *key)
        with tarfile.open(tmp_path / folder / "000000.tar") as tar:
            return tar.getnames()

    assert names("numbers") == [f"{n:09}.{extension}" for n in range(4)
                                for extension in ("path.txt", "json")]
    assert names("paths", "--key", "path")[1::2] == [
        "a/__/b_c.json", "x.json", "x-000000002.json", "000000003.json"]
    assert names("n", "--key", "n")[1::2] == [f"{n}.json" for n in range(4)]
    wrong = run(tmp_path / "rows.yaml", "--to", "webdataset", "--out", tmp_path / "no", "--key",
                "gone")
    assert wrong.returncode == 1 and "--key gone: a row has no such feature" in wrong.stderr
