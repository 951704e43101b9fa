"""Promise: files that are compressed as a whole give the batches of the plain ones, bit for
bit, whichever format they have; they are inflated once, whoever is killed and however
often they are opened; what cannot be inflated is refused with its name, and leaves
nothing. Method: every format by every compression beside the plain files; a broker and a
cache folder of each test's own."""

import bz2
import fcntl
import gzip
import io
import json
import lzma
import os
import pathlib
import resource
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
import zlib

import numpy as np
import penstock
import pytest

zstandard = pytest.importorskip("zstandard", reason="no zstandard")

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "unit" / "golden"
Dataset = penstock.Dataset
N = {"dtype": "int64", "shape": []}
COMPRESSIONS = {
    "gz": lambda data: gzip.compress(data, 6),
    "zst": lambda data: zstandard.ZstdCompressor().compress(data),
    "bz2": lambda data: bz2.compress(data, 1),
    "xz": lambda data: lzma.compress(data, preset=0),
}


# ---- formats: what a file of records begin..end has, and its dataset -----------------


def tar(begin, end):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for n in range(begin, end):
            for extension, data in ("cls", b"%d" % n), ("bin", b"%08d" % n):
                info = tarfile.TarInfo(f"{n:05}.{extension}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def lines(text):
    return lambda begin, end: "".join(text(n) + "\n" for n in range(begin, end)).encode()


def npy(begin, end):
    out = io.BytesIO()
    np.save(out, np.arange(begin * 3, end * 3, dtype="<i4").reshape(-1, 3))
    return out.getvalue()


FORMATS = {  # content, dataset, whether a plain file may begin like a compressed one
    "webdataset": (tar, lambda files: Dataset.webdataset(
        files, {"cls": N, "bin": {"dtype": "uint8", "shape": [8]}}), False),
    "tfrecord": (lambda begin, end: (GOLDEN / "examples.tfrecord").read_bytes() * (end - begin),
                 lambda files: Dataset.tfrecord(files, {
                     "label": {"key": "image/class/label", **N},
                     "text": {"max_bytes": 16}}), False),
    "csv": (lines(lambda n: f'{n},"a, {n % 7}"'), lambda files: Dataset.csv(
        files, {"0": {"dtype": "int64"}, "1": {"max_bytes": 8}}, header=False), False),
    "json_lines": (lines(lambda n: json.dumps({"n": n, "t": "é" * (n % 9)})),
                   lambda files: Dataset.json_lines(
                       files, {"n": N, "t": {"max_bytes": 20}}), False),
    "text_lines": (lines(lambda n: f"line {n * n}"),
                   lambda files: Dataset.text_lines(files, 24), False),
    "npy": (npy, lambda files: Dataset.npy({"x": files}), False),
    "tokens": (lambda begin, end: np.arange(begin * 8, end * 8 + 1, dtype="<u2").tobytes(),
               lambda files: Dataset.tokens(files, 8), True),
    "fixed_length_records": (
        lambda begin, end: np.arange(begin, end, dtype="<i8").tobytes(),
        lambda files: Dataset.fixed_length_records(
            files, {"x": penstock.TensorSpec((), "int64")}), True),
}
PARTS = [(0, 40), (40, 45), (45, 90)]


def write(path, data, age=3600):
    """A file of an hour ago: its copy need not wait for a change to show."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    os.utime(path, (time.time() - age,) * 2)
    return path


def files_of(folder, form, compress=bytes, suffix=""):
    content = FORMATS[form][0]
    return [write(folder / f"part-{i}{suffix}", compress(content(*part)))
            for i, part in enumerate(PARTS)]


def rows_of(reader):
    """Every value of every row, in order."""
    return [tuple(batch[name][i].tobytes() for name in batch)
            for batch in reader for i in range(batch.rows)]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache" / "files"


@pytest.fixture
def attach(cache):
    readers = []
    with penstock.broker(workers=2) as broker:
        def attach_one(dataset, **options):
            options.setdefault("job", f"job-{len(readers)}")
            readers.append(penstock.attach(dataset, socket=broker.socket, timeout_s=60,
                                           **options))
            return readers[-1]

        yield attach_one
        for reader in readers:
            reader.close()


def kept(cache):
    """The files of copies: {name: (inode, time)}."""
    if not cache.exists():
        return {}
    return {each.name: (each.stat().st_ino, each.stat().st_mtime_ns)
            for each in cache.iterdir() if each.suffix == ".data"}


def assert_nothing_left(cache):
    assert not cache.exists() or [each.name for each in cache.iterdir()] in ([], ["lock"])


@pytest.mark.parametrize("form", FORMATS)
def test_every_compression_gives_the_batches_of_the_plain_files(attach, tmp_path, cache, form):
    def shuffled(files):
        return FORMATS[form][1](files).shuffle(seed=7).batch(8, last="partial").repeat(2)

    plain = rows_of(attach(shuffled(files_of(tmp_path / "plain", form))))
    assert len(plain) == 2 * 90 * (3 if form == "tfrecord" else 1)
    assert len(set(plain)) > 2
    for suffix, compress in COMPRESSIONS.items():
        files = files_of(tmp_path / suffix, form, compress, "." + suffix)
        assert rows_of(attach(shuffled(files))) == plain, suffix
    assert len(kept(cache)) == len(COMPRESSIONS) * len(PARTS)
    # By their content alone, where no plain file begins so.
    files = files_of(tmp_path / "unnamed", form, COMPRESSIONS["gz"])
    if FORMATS[form][2]:
        return
    assert rows_of(attach(shuffled(files))) == plain


def test_plain_and_compressed_files_go_together(attach, tmp_path, cache):
    plain = files_of(tmp_path / "plain", "csv")
    compressed = files_of(tmp_path / "other", "csv", COMPRESSIONS["xz"], ".xz")
    dataset = FORMATS["csv"][1]
    rows = rows_of(attach(dataset(plain).batch(8, last="partial")))
    assert rows == rows_of(attach(dataset([plain[0], compressed[1], plain[2]]).batch(
        8, last="partial")))
    assert len(kept(cache)) == 1
    # They are known by their own names.
    only = dataset([plain[0], compressed[1]]).filter("file", matches="*/part-1.xz")
    assert rows_of(attach(only.batch(5))) == rows[40:45]


def test_a_state_resumes_with_another_broker_and_plain_files_of_the_names(tmp_path, cache):
    def dataset(folder, compress):
        return FORMATS["webdataset"][1](
            files_of(tmp_path / folder, "webdataset", compress, ".zst")
        ).shuffle(seed=3).batch(7, last="partial").repeat(3)

    first = dataset("a", COMPRESSIONS["zst"])
    with penstock.broker(workers=1) as broker:
        whole = rows_of(penstock.attach(first, socket=broker.socket, job="whole", timeout_s=60))
        reader = penstock.attach(first, socket=broker.socket, job="first", timeout_s=60)
        taken = [row for _ in range(9) for batch in [reader.next()]
                 for row in rows_of([batch])]
        state = reader.state_dict()
        reader.close()
    copies = kept(cache)
    for again in first, dataset("b", bytes):
        with penstock.broker(workers=1) as broker:
            rest = rows_of(penstock.attach(again, socket=broker.socket, job="rest",
                                           state=state, timeout_s=60))
        assert taken + rest == whole
    assert kept(cache) == copies  # none was made again


def test_datasets_share_a_copy(attach, tmp_path, cache):
    files = files_of(tmp_path / "x", "json_lines", COMPRESSIONS["gz"], ".gz")
    make = FORMATS["json_lines"][1]
    rows_of(attach(make(files[:2]).batch(5)))
    first = kept(cache)
    assert len(first) == 2
    rows_of(attach(make(files).shuffle(1).batch(5)))
    mixed = Dataset.mix([make(files[:1]), make(files[1:])]).batch(5)
    rows_of(attach(mixed))
    assert len(kept(cache)) == 3
    assert {name: kept(cache)[name] for name in first} == first


@pytest.mark.parametrize("how", ["buffered", "direct"])
def test_a_copy_is_held_for_as_long_as_it_is_read(tmp_path, cache, how):
    data = np.random.default_rng(1).integers(0, 256, (20, 1 << 16), dtype="uint8")
    path = write(tmp_path / "a.gz", gzip.compress(data.tobytes(), 1))
    dataset = Dataset.fixed_length_records(
        path, {"x": penstock.TensorSpec((1 << 16,), "uint8")}, io=how).shuffle(1).batch(4)

    def lock():
        with open(next(cache.glob("*.data")), "rb") as copy:
            fcntl.flock(copy, fcntl.LOCK_EX | fcntl.LOCK_NB)

    with penstock.broker(workers=1) as broker:
        try:
            reader = penstock.attach(dataset, socket=broker.socket, job="a", timeout_s=60)
        except penstock.InvalidArgument as error:
            assert "has no direct reads" in str(error)
            pytest.skip(str(error))
        for batch in reader:
            assert (batch["x"] == data[batch.ids]).all()
            with pytest.raises(BlockingIOError):
                lock()
        reader.close()
    lock()


def test_a_changed_file_is_inflated_anew(attach, tmp_path):
    make = FORMATS["text_lines"][1]
    path = write(tmp_path / "a.gz", gzip.compress(b"one\ntwo\n"))
    before = attach(make(path).batch(1))
    write(path, gzip.compress(b"three\n"), age=60)
    assert len(rows_of(before)) == 2
    assert rows_of(attach(make(path).batch(1)))[0][0].rstrip(b"\0") == b"three"


def test_a_killed_broker_leaves_nothing_that_counts(tmp_path, cache):
    piece = np.random.default_rng(1).bytes(1 << 20)
    path = write(tmp_path / "a.bz2", bz2.compress(piece, 9) * 80)
    dataset = Dataset.fixed_length_records(
        path, {"x": penstock.TensorSpec((1 << 12,), "uint8")}).named("d").batch(64)
    (tmp_path / "spec.json").write_text(dataset.to_json())
    check = [PENSTOCK, "check", str(tmp_path / "spec.json")]
    # The kernel kills the broker after a second of CPU, in the midst of inflating.
    killed = subprocess.run(check, capture_output=True, timeout=120, preexec_fn=lambda:
                            resource.setrlimit(resource.RLIMIT_CPU, (1, 1)))
    assert killed.returncode != 0
    assert [part for part in cache.glob("*.part") if part.stat().st_blocks]
    result = subprocess.run(check, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert sorted(each.suffix for each in cache.iterdir()) == ["", ".copy", ".data"]
    assert next(cache.glob("*.data")).read_bytes() == piece * 80


def test_check_says_what_it_takes_before_and_after(tmp_path, cache):
    files = files_of(tmp_path / "x", "text_lines", COMPRESSIONS["gz"], ".gz")
    dataset = FORMATS["text_lines"][1](files).named("d").batch(4)
    (tmp_path / "spec.json").write_text(dataset.to_json())

    def check():
        result = subprocess.run([PENSTOCK, "check", str(tmp_path / "spec.json")],
                                capture_output=True, text=True, timeout=60)
        assert result.returncode == 0, result.stderr
        assert "\ninflated         3 files, " in result.stdout
        return result.stderr

    size = sum(len(FORMATS["text_lines"][0](*part)) for part in PARTS)
    assert f"inflates 3 compressed files: about {size} bytes of the " in check()
    assert "inflates" not in check()


def test_without_room_it_is_refused_with_the_way_out(attach, tmp_path, cache):
    data = np.random.default_rng(1).bytes(100_000) * 30
    path = write(tmp_path / "a.zst", zstandard.ZstdCompressor().compress(data))
    dataset = Dataset.fixed_length_records(path, {"x": penstock.TensorSpec((1000,), "uint8")})
    with pytest.raises(penstock.FailedPrecondition, match=(
            r"a\.zst is compressed as a whole \(zstd\), and inflated it takes about 2\.9 MiB: "
            r"2\.9 MiB more are wanted, and `cache: \{files\}` lets them take 1\.0 MiB; or "
            r"inflate it yourself \(unzstd\)")):
        attach(dataset.cache(files="1M").batch(10))
    assert_nothing_left(cache)
    assert len(rows_of(attach(dataset.cache(files="3M").batch(10)))) == 3000


def test_a_full_disk(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    path = write(tmp_path / "a.zst", zstandard.ZstdCompressor().compress(bytes(1 << 20)))
    dataset = Dataset.fixed_length_records(
        path, {"x": penstock.TensorSpec((1024,), "uint8")}).named("d").batch(10)
    spec = tmp_path / "spec.json"
    script = (f"mount -t tmpfs -o size=800K none {out} || exit 77; "
              f"PENSTOCK_CACHE_DIR={out} {PENSTOCK} check {spec}; "
              f"echo status $?; ls {out}/files")

    def check(made):
        spec.write_text(made.to_json())
        result = subprocess.run(["unshare", "-Urm", "sh", "-c", script],
                                capture_output=True, text=True, timeout=60)
        if result.returncode == 77 or "unshare" in result.stderr:
            pytest.skip("no tmpfs can be mounted here: " + result.stderr)
        assert "status 1" in result.stdout
        assert result.stdout.split("status 1")[1].split() == ["lock"]
        return result.stderr

    for made in dataset, dataset.cache(files="1G"):  # more than there is
        error = check(made)
        assert "inflated it takes about 1.0 MiB: 1.0 MiB more are wanted, and " in error
        assert "/files has room for " in error and "(unzstd)" in error


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_damaged_files_are_named_and_nothing_is_kept(attach, tmp_path, cache, suffix):
    make = FORMATS["webdataset"][1]
    whole = COMPRESSIONS[suffix](tar(0, 200))
    cut = write(tmp_path / f"cut.{suffix}", whole[:-5])
    with pytest.raises(penstock.DataLoss, match=(
            rf"cut\.{suffix}, offset {len(whole) - 5}: the file ends within its compressed "
            "data; it was cut off: copy it again")):
        attach(make(cut).batch(1))
    more = write(tmp_path / f"more.{suffix}", whole + b"more of it")
    with pytest.raises(penstock.DataLoss, match=rf"more\.{suffix}, offset \d+: "):
        attach(make(more).batch(1))
    garbage = whole[:20] + bytes(len(whole) - 40) + whole[-20:]
    garbage = write(tmp_path / f"garbage.{suffix}", garbage)
    with pytest.raises((penstock.DataLoss, penstock.InvalidArgument),
                       match=rf"garbage\.{suffix}"):
        attach(make(garbage).batch(1))
    assert_nothing_left(cache)


@pytest.mark.parametrize("suffix", COMPRESSIONS)
def test_a_bomb_ends_at_what_is_allowed(attach, tmp_path, cache, suffix):
    # Several members, of which none says what all take.
    bomb = COMPRESSIONS[suffix](bytes(1 << 20)) * 64
    path = write(tmp_path / f"bomb.{suffix}", bomb)
    with pytest.raises(penstock.FailedPrecondition,
                       match=rf"bomb\.{suffix}.*`cache: {{files}}` lets them take 8\.0 MiB"):
        attach(FORMATS["text_lines"][1](path).cache(files="8M").batch(1))
    assert_nothing_left(cache)


# ---- npz and mds: compressed within ----------------------------------------------------


def test_npz_by_savez_compressed(attach, tmp_path, cache):
    rng = np.random.default_rng(1)
    arrays = {"image": rng.integers(0, 9, (50, 7, 5), dtype="uint8"),
              "label": np.arange(50), "other": rng.random((50, 300))}
    np.savez(tmp_path / "plain.npz", **arrays)
    np.savez_compressed(tmp_path / "deflated.npz", **arrays)
    with zipfile.ZipFile(tmp_path / "some.npz", "w") as some:
        for name, array in arrays.items():
            out = io.BytesIO()
            np.save(out, array)
            some.writestr(name + ".npy", out.getvalue(),
                          zipfile.ZIP_DEFLATED if name == "image" else zipfile.ZIP_STORED)
    names = {name: name for name in arrays}

    def rows(file):
        return rows_of(attach(Dataset.npz(tmp_path / file, names).shuffle(5).batch(
            8, last="partial")))

    plain = rows("plain.npz")
    assert len(plain) == 50 and kept(cache) == {}
    assert rows("deflated.npz") == plain
    assert len(kept(cache)) == 3
    assert rows("some.npz") == plain
    assert len(kept(cache)) == 4


def test_npz_that_is_damaged(attach, tmp_path, cache):
    np.savez_compressed(tmp_path / "a.npz", x=np.arange(1000) % 7)
    data = bytearray((tmp_path / "a.npz").read_bytes())
    directory = data.rindex(b"PK\1\2")

    def refused(match, at, value):
        changed = data.copy()
        struct.pack_into("<I", changed, directory + at, value)
        write(tmp_path / "b.npz", changed)
        with pytest.raises((penstock.DataLoss, penstock.FailedPrecondition),
                           match=r"b\.npz, array 'x'.*" + match):
            attach(Dataset.npz(tmp_path / "b.npz", {"x": "x"}).batch(1))

    crc, size = struct.unpack_from("<I4xI", data, directory + 16)
    wrong = "inflates to other bytes than its archive says; it is damaged"
    refused(wrong, 16, crc ^ 1)
    refused(wrong, 24, size - 1)
    refused(wrong, 24, size + 1)
    data[100] ^= 255
    refused("", 16, crc)
    assert_nothing_left(cache)


@pytest.mark.parametrize("suffix, name", [("zst", "zstd"), ("gz", "gz"), ("bz2", "bz2")])
def test_mds_shards_that_are_compressed(attach, tmp_path, cache, suffix, name):
    def shard(begin, end):
        texts = [struct.pack("<I", n % 5) + b"x" * (n % 5) for n in range(begin, end)]
        ends = np.cumsum([4 * (len(texts) + 2), *map(len, texts)]).astype("<u4")
        return struct.pack("<I", len(texts)) + ends.tobytes() + b"".join(texts)

    def folder(where, compress):
        listed = []
        for i, part in enumerate(PARTS):
            data = shard(*part)
            packed = compress(data)
            plain = packed == data
            write(tmp_path / where / (f"{i}.mds" if plain else f"{i}.mds.{name}"), packed)
            listed.append({
                "version": 2, "format": "mds", "samples": part[1] - part[0],
                "column_names": ["t"], "column_encodings": ["str"], "column_sizes": [None],
                "compression": None if plain else name + ":3", "hashes": ["xxh3_64"],
                "size_limit": 1 << 26,
                "zip_data": None if plain else {
                    "basename": f"{i}.mds.{name}", "bytes": len(packed), "hashes": {}},
                "raw_data": {"basename": f"{i}.mds", "bytes": len(data), "hashes": {}}})
        (tmp_path / where / "index.json").write_text(json.dumps(
            {"version": 2, "shards": listed}))
        return Dataset.mds(tmp_path / where, {"t": {"max_bytes": 8}}).shuffle(2).batch(9)

    plain = rows_of(attach(folder("plain", bytes)))
    assert rows_of(attach(folder("packed", COMPRESSIONS[suffix]))) == plain
    assert len(kept(cache)) == 3


def test_a_tfrecord_compressed_by_zlib_is_refused(failure_of, tmp_path):
    path = write(tmp_path / "a.tfrecord",
                 zlib.compress((GOLDEN / "examples.tfrecord").read_bytes()))
    assert "is compressed as a whole by zlib" in failure_of(FORMATS["tfrecord"][1](path).batch(1))


@pytest.fixture
def failure_of(attach):
    def failure(dataset):
        with pytest.raises(penstock.Error) as error:
            attach(dataset)
        return str(error.value)
    return failure
