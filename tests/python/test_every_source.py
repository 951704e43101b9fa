"""Every source, over files that the formats' own writers made: `penstock check` tries a
row, `penstock bench --verify` proves every sample, and one damaged record is told with
its file, left out or replaced as on_error says."""

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
import wave
import zlib

import megatron_rules
import numpy as np
import penstock
import pytest

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "unit" / "golden"
RECORDS = 12
BAD = 5  # the record that `damaged` makes unreadable

MODULE = '''
import os


class Squares:
    def __init__(self, bad=None):
        self.bad = bad

    def __len__(self):
        return 12

    def __getitem__(self, i):
        if i == self.bad:
            raise ValueError("no such square")
        return {"n": i, "square": i * i}
'''

N = {"n": {"dtype": "int64", "shape": []}}


def lines(path, text):
    path.write_text("".join(text(n) + "\n" for n in range(RECORDS)))
    return path


def image_folder(folder, damaged):
    pictures = pytest.importorskip("PIL.Image", reason="no Pillow")
    for n in range(RECORDS):
        (folder / "a").mkdir(exist_ok=True)
        pixels = np.random.default_rng(n).integers(0, 255, (24, 32, 3), "uint8")
        pictures.fromarray(pixels).save(folder / "a" / f"{n:02}.jpg")
    if damaged:
        path = folder / "a" / f"{BAD:02}.jpg"
        os.truncate(path, path.stat().st_size // 2)
    return penstock.Dataset.image_folder(folder).map(penstock.decode_image(16))


def coco(folder, damaged):
    image_folder(folder, damaged)
    (folder / "instances.json").write_text(json.dumps({
        "images": [{"id": n, "file_name": f"{n:02}.jpg"} for n in range(RECORDS)],
        "annotations": [{"image_id": n, "category_id": 1, "bbox": [n, 0, 2.5, 7]}
                        for n in range(RECORDS) if n % 3],
        "categories": [{"id": 1, "name": "a"}]}))
    return penstock.Dataset.coco(folder / "instances.json", folder / "a").map(
        penstock.decode_image(16, boxes="boxes"))


def audio_folder(folder, damaged):
    for n in range(RECORDS):
        (folder / "a").mkdir(exist_ok=True)
        with wave.open(str(folder / "a" / f"{n:02}.wav"), "wb") as file:
            file.setparams((1, 2, 8000, 0, "NONE", ""))
            file.writeframes(np.arange(400 + n, dtype="<i2").tobytes())
    if damaged:
        os.truncate(folder / "a" / f"{BAD:02}.wav", 300)
    return penstock.Dataset.audio_folder(folder).map(
        penstock.decode_audio(16000, 0.1, mono=True))


def idx(folder, damaged):
    pictures = np.arange(RECORDS * 6, dtype=">i2").reshape(RECORDS, 2, 3)
    header = struct.pack(">HBB", 0, 0x0B, 3) + struct.pack(">3I", *pictures.shape)
    (folder / "images").write_bytes(header + pictures.tobytes())
    return penstock.Dataset.idx(folder / "images")


def fixed_length_records(folder, damaged):
    records = np.zeros(RECORDS, [("flag", "?"), ("x", "<f4", 3)])
    records["x"] = np.arange(RECORDS * 3).reshape(RECORDS, 3)
    data = bytearray(records.tobytes())
    if damaged:
        data[BAD * records.itemsize] = 7  # no bool
    (folder / "records").write_bytes(data)
    return penstock.Dataset.fixed_length_records(
        folder / "records", {"flag": penstock.TensorSpec((), "bool"),
                             "x": penstock.TensorSpec((3,), "float32")})


def text_lines(folder, damaged):
    return penstock.Dataset.text_lines(lines(
        folder / "lines.txt", lambda n: "too long" if damaged and n == BAD else f"{n}"), 7)


def json_lines(folder, damaged):
    return penstock.Dataset.json_lines(lines(
        folder / "a.jsonl", lambda n: "[" * 5000 if damaged and n == BAD
        else json.dumps({"n": n, "t": "é" * n})), {**N, "t": {"max_bytes": 40}})


def csv(folder, damaged):
    lines(folder / "a.csv", lambda n: "1,2,3" if damaged and n == BAD else f"{n},a")
    return penstock.Dataset.csv(folder / "a.csv", {"0": {"dtype": "int64"}}, header=False)


def tokens(folder, damaged):
    data = np.arange(RECORDS * 8 + 1, dtype="uint32")
    if damaged:
        data[BAD * 8 + 3] = 2**31
    data.tofile(folder / "tokens.bin")
    return penstock.Dataset.tokens(folder / "tokens.bin", 8, dtype="uint32",
                                   output_dtype="int32")


def npy(folder, damaged):
    data = np.zeros((RECORDS, 4), bool)
    np.save(folder / "a.npy", data)
    if damaged:
        with open(folder / "a.npy", "r+b") as file:
            file.seek(-(RECORDS - BAD) * 4, os.SEEK_END)
            file.write(b"\7")
    return penstock.Dataset.npy({"a": folder / "a.npy"})


def npz(folder, damaged):
    np.savez(folder / "a.npz", x=np.arange(RECORDS * 2).reshape(RECORDS, 2),
             y=np.arange(RECORDS))
    return penstock.Dataset.npz(folder / "a.npz", {"x": "x", "label": "y"})


def tfrecord(folder, damaged):
    path = folder / "a.tfrecord"
    data = (GOLDEN / "examples.tfrecord").read_bytes() * (RECORDS // 3)
    if damaged:
        at = 0
        for _ in range(BAD):
            at += 16 + struct.unpack_from("<Q", data, at)[0]
        data = data[:at + 20] + bytes([data[at + 20] ^ 1]) + data[at + 21:]
    path.write_bytes(data)
    return penstock.Dataset.tfrecord(path, {
        "label": {"key": "image/class/label", "dtype": "int64", "shape": []},
        "text": {"max_bytes": 16}})


def webdataset(folder, damaged):
    with tarfile.open(folder / "a.tar", "w") as tar:
        for n in range(RECORDS):
            text = b"twelve" if damaged and n == BAD else b"%d" % n
            info = tarfile.TarInfo(f"{n:03}.cls")
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text))
    return penstock.Dataset.webdataset(folder / "*.tar", {"cls": N["n"]})


def mds(folder, damaged):
    texts = [struct.pack("<I", 99 if damaged and n == BAD else n) + b"x" * n
             for n in range(RECORDS)]
    ends = np.cumsum([4 * (RECORDS + 2), *map(len, texts)]).astype("<u4")
    shard = struct.pack("<I", RECORDS) + ends.tobytes() + b"".join(texts)
    (folder / "a.mds").write_bytes(shard)
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [{
        "version": 2, "format": "mds", "samples": RECORDS, "column_names": ["t"],
        "column_encodings": ["str"], "column_sizes": [None], "compression": None,
        "hashes": [], "size_limit": 1 << 26, "zip_data": None,
        "raw_data": {"basename": "a.mds", "bytes": len(shard), "hashes": {}}}]}))
    return penstock.Dataset.mds(folder, {"t": {"max_bytes": RECORDS}})


def lmdb(folder, damaged):
    environment = pytest.importorskip("lmdb").open(str(folder), map_size=1 << 20)
    with environment, environment.begin(write=True) as transaction:
        for n in range(RECORDS):
            transaction.put(b"label-%03d" % n,
                            b"twelve" if damaged and n == BAD else b"%d" % n)
        transaction.put(b"num-samples", b"%d" % RECORDS)
    return penstock.Dataset.lmdb(folder, {"n": {"key": "label-*", **N["n"]}})


def megatron(folder, damaged):
    tokens = np.arange(RECORDS * 8 + 1)
    if damaged:
        tokens[BAD * 8 + 3] = 9999
    megatron_rules.write_dataset(folder / "a", np.split(tokens, [7, 7, 30]))
    return penstock.Dataset.megatron(folder / "a", 8, order="penstock", vocab_size=9999)


def python(folder, damaged):
    return penstock.Dataset.python("squares:Squares",
                                   args={"bad": BAD} if damaged else {})


def range_(folder, damaged):
    return penstock.Dataset.range(RECORDS)


def tensors(folder, damaged):
    return penstock.Dataset.tensors({"x": np.arange(RECORDS)})


def synthetic(folder, damaged):
    return penstock.Dataset.synthetic(RECORDS, {"x": penstock.TensorSpec((4,), "float32")})


SOURCES = [image_folder, coco, audio_folder, idx, fixed_length_records, text_lines, json_lines, csv, tokens,
           npy, npz, tfrecord, webdataset, mds, lmdb, megatron, python, range_, tensors, synthetic]
# What a record is told by, behind its file.
DAMAGE = {
    image_folder: r"05\.jpg: .*",
    coco: r"05\.jpg: .*",
    audio_folder: r"05\.wav: .*truncated: its samples have 810 bytes, of which 256 are",
    fixed_length_records: r"records, offset 65: feature 'flag': byte 0 of its row is 7",
    text_lines: r"lines\.txt, line 6.*: a line of 8 bytes; at most 7 fit",
    json_lines: r"a\.jsonl, line 6: not JSON: .*",
    csv: r"a\.csv, row 6 \(offset 20\): 3 columns, wanted 2",
    tokens: r"tokens\.bin, offset 160: token 3 of the sequence does not fit into int32",
    npy: r"a\.npy, row 5 \(offset 148\): feature 'a': byte 0 of its row is 7",
    tfrecord: r"a\.tfrecord, record 5 at offset \d+: the checksum of its data is wrong",
    webdataset: r"a\.tar, sample 5 at offset \d+: member cls: wanted a number",
    mds: r"a\.mds, sample 5 at offset \d+: column 't' \(str\): 99 bytes by its size; 5 are",
    lmdb: r"data\.mdb, sample 5 at offset \d+: key label-\*: wanted a number",
    megatron: r"a\.bin, sample 5 \(offset 80\): token 3 of the sample is 9999; vocab_size",
    python: r"squares:Squares\[5\]: .*ValueError: no such square",
}


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modules")
    (folder / "squares.py").write_text(MODULE)
    return folder


@pytest.fixture(scope="module")
def broker(modules):
    with penstock.broker(workers=2, python_path=[modules]) as started:
        yield started


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.__name__)
def test_check_and_bench(tmp_path, modules, source):
    dataset = source(tmp_path, False).shuffle(seed=1).batch(5).repeat(2)
    spec = tmp_path / "spec.json"
    spec.write_text(dataset.to_json())

    def penstock_command(*words):
        run = subprocess.run(
            [PENSTOCK, *words], capture_output=True, text=True, timeout=60,
            env={**os.environ, "PENSTOCK_PYTHON_PATH": str(modules),
                 "PENSTOCK_PYTHON": sys.executable})
        assert (run.returncode, run.stderr) == (0, "")
        return json.loads(run.stdout)

    checked = penstock_command("check", "--json", spec)
    assert checked["records"] == RECORDS
    assert checked["warnings"] == []
    assert 0 <= checked["row"]["sample"] < RECORDS
    benched = penstock_command("bench", "--dataset", spec, "--ranks", "2", "--verify",
                               "--json")
    assert benched["verified"] == 2 * RECORDS


@pytest.mark.filterwarnings("ignore:1 line is longer than max_bytes")
@pytest.mark.parametrize("source", DAMAGE, ids=lambda source: source.__name__)
def test_a_damaged_record(attach, tmp_path, request, source):
    dataset = source(tmp_path, True).batch(4)

    def ids(policy):
        reader = attach(dataset.on_error(policy), job=request.node.name[:40] + policy)
        return [i for batch in reader for i in batch.ids.tolist()]

    with pytest.raises(penstock.DataLoss, match="(?s)sample 5.*" + DAMAGE[source]):
        ids("fail")
    every = list(range(RECORDS))
    assert ids("skip") == every[:BAD] + every[BAD + 1:]
    assert ids("substitute") == every[:BAD] + [BAD + 1] + every[BAD + 1:]


def test_picture_bombs(attach, tmp_path):
    pictures = pytest.importorskip("PIL.Image", reason="no Pillow")
    (tmp_path / "a").mkdir()
    for name in ("0.jpg", "1.jpg", "2.png", "3.png", "4.png"):
        pictures.new("RGB", (20, 10)).save(tmp_path / "a" / name)
    jpeg = (tmp_path / "a" / "1.jpg").read_bytes()
    size = jpeg.index(struct.pack(">HH", 10, 20))
    (tmp_path / "a" / "1.jpg").write_bytes(
        jpeg[:size] + b"\xff\xff\xff\xff" + jpeg[size + 4:])

    def png(side, *chunks):
        data = b"\x89PNG\r\n\x1a\n"
        for kind, content in (
                (b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 0, 0, 0, 0)), *chunks,
                (b"IEND", b"")):
            data += struct.pack(">I", len(content)) + kind + content
            data += struct.pack(">I", zlib.crc32(kind + content))
        return data

    rows = zlib.compress(bytes(11 * 10))
    bomb = zlib.compress(bytes(50 << 20))
    (tmp_path / "a" / "2.png").write_bytes(png(65535, (b"IDAT", rows)))
    (tmp_path / "a" / "3.png").write_bytes(png(
        10, (b"iCCP", b"x\0\0" + bomb), (b"zTXt", b"x\0\0" + bomb), (b"IDAT", rows)))
    (tmp_path / "a" / "4.png").write_bytes(png(10, (b"IDAT", bomb)))
    dataset = penstock.Dataset.image_folder(tmp_path).map(penstock.decode_image(8)).batch(1)
    for bad in ("1.jpg", "2.png"):
        only = tmp_path / bad
        (only / "a").mkdir(parents=True)
        (only / "a" / bad).write_bytes((tmp_path / "a" / bad).read_bytes())
        with pytest.raises(penstock.DataLoss, match=re.escape(bad) + ".*(65500|65535)"):
            attach(penstock.Dataset.image_folder(only).map(
                penstock.decode_image(8)).batch(1), job=bad).next()
        shutil.rmtree(only)
    skipped = attach(dataset.on_error("skip"))
    ids = [i for batch in skipped for i in batch.ids.tolist()]
    assert 0 in ids and 3 in ids and 1 not in ids and 2 not in ids
