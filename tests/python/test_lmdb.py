"""Source lmdb beside python-lmdb: random databases of many sizes agree entry by entry,
samples of several keys come whatever their order, and a job goes on in the middle."""

import json
import os
import subprocess
import sys

import numpy as np
import penstock
import pytest

lmdb = pytest.importorskip("lmdb")
PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
ROOM = 30000


def write(path, entries, *, database=None, **options):
    """An environment with these (key, value) pairs, in this order."""
    with lmdb.open(str(path), map_size=1 << 28, max_dbs=4, **options) as environment:
        handle = environment.open_db(database) if database else None
        with environment.begin(write=True) as transaction:
            for key, value in entries:
                transaction.put(key, value, db=handle)


def values_of(reader, feature="value"):
    """The bytes of every row, in order."""
    rows = []
    for batch in reader:
        values, lengths = batch[feature], batch[feature + ".length"]
        rows += [row[:length].tobytes() for row, length in zip(values, lengths)]
    return rows


def dataset_of(path, **options):
    return penstock.Dataset.lmdb(
        path, {"value": {"dtype": "uint8", "max_length": ROOM}}, **options)


@pytest.mark.parametrize("entries", [1, 2, 30, 500, 6000])
@pytest.mark.parametrize("seed", [1, 2])
def test_random_databases_agree(attach, tmp_path, entries, seed, request):
    rng = np.random.default_rng([entries, seed])
    # Inline, at the border of a page's share, on pages of their own.
    sizes = [0, 1, 2029, 2030, 2031, 4080, 4081, 8176, 8177, ROOM]
    pairs = []
    for _ in range(entries):
        size = int(rng.choice(sizes) if rng.random() < min(1, 200 / entries)
                   else rng.integers(0, 60))
        pairs.append((rng.bytes(int(rng.integers(1, 512))), rng.bytes(size)))
    write(tmp_path, pairs)
    with lmdb.open(str(tmp_path), map_size=1 << 28) as environment:
        for _ in range(3):  # pages that are freed and taken again
            with environment.begin(write=True) as transaction:
                for key, value in rng.permutation(np.array(pairs, object))[:entries // 3]:
                    transaction.delete(key)
                for key, value in rng.permutation(np.array(pairs, object))[:entries // 4]:
                    transaction.put(key, value[::-1])
        with environment.begin() as transaction:
            wanted = [value for _, value in transaction.cursor()]
    if not wanted:
        pytest.skip("every entry was deleted")
    reader = attach(dataset_of(tmp_path).batch(64, last="partial"),
                    job=request.node.name.translate(str.maketrans("[]", "--")))
    assert values_of(reader) == wanted


@pytest.mark.parametrize("keys", [
    ("image-%09d", "label-%09d"), ("%d.jpg", "%d.txt"), ("%d-image", "a%d/text"),
    ("%d", "%d_text")])
def test_samples_of_several_keys_agree(attach, tmp_path, keys):
    image, text = keys
    numbers = range(1, 1500)
    write(tmp_path / "one.mdb", [
        (key.encode(), value) for n in reversed(numbers) for key, value in (
            (image % n, bytes([n % 251 + 1]) * (n * 7 % 3000)),
            (text % n, b"text %d" % n))] + [(b"num-samples", b"1499")], subdir=False)
    star = lambda key: key.replace("%09d", "*").replace("%d", "*")
    dataset = penstock.Dataset.lmdb(tmp_path / "one.mdb", {
        "text": {"key": star(text), "max_bytes": 16},
        "value": {"key": star(image), "dtype": "uint8", "max_length": ROOM}})
    with lmdb.open(str(tmp_path / "one.mdb"), subdir=False) as environment:
        with environment.begin() as transaction:
            before, after = star(text).split("*")
            wanted = [(transaction.get((image % n).encode()), value)
                      for key, value in transaction.cursor()
                      if key.decode().startswith(before) and key.decode().endswith(after)
                      and value.startswith(b"text")
                      for n in [int(value.split()[1])]]
    assert len(wanted) == len(numbers)
    got = []
    reader = attach(dataset.batch(50, last="partial"),
                    job=f"keys-{len(image)}-{len(text)}")
    for batch in reader:
        got += [(value[:length].tobytes(), words[:size].tobytes())
                for value, length, words, size in zip(
                    batch["value"], batch["value.length"], batch["text"],
                    batch["text_bytes"])]
    assert got == wanted


def test_a_named_database_and_a_job_that_goes_on(attach, tmp_path):
    write(tmp_path, [(b"%05d" % n, b"%d" % n) for n in range(300)], database=b"train")
    write(tmp_path, [(b"x", b"y")], database=b"val")
    dataset = penstock.Dataset.lmdb(
        tmp_path, {"n": {"dtype": "int64", "shape": []}}, database="train").shuffle(
            seed=5).batch(7, last="partial").repeat(2)

    def numbers(reader):
        return [n for epoch in reader.epochs() for batch in epoch
                for n in batch["n"].tolist()]

    whole = numbers(attach(dataset, job="whole"))
    assert sorted(whole) == sorted([*range(300)] * 2)
    first = attach(dataset, job="first")
    taken = []
    for _ in range(20):
        taken += first.next()["n"].tolist()
    state = json.loads(json.dumps(first.state_dict()))
    first.close()
    assert taken + numbers(attach(dataset, state=state, job="second")) == whole
    with pytest.raises(penstock.InvalidArgument, match="`database`: 'train', 'val'"):
        attach(dataset_of(tmp_path).batch(1), job="none")


def test_bench_verifies_every_sample(tmp_path):
    write(tmp_path, [(b"image-%09d" % n, bytes(n % 5000)) for n in range(1000)])
    spec = tmp_path / "spec.json"
    spec.write_text(penstock.Dataset.lmdb(tmp_path, {
        "value": {"key": "image-*", "dtype": "uint8", "max_length": 5000}}).shuffle(
            seed=1).batch(32, last="partial").to_json())
    run = subprocess.run([PENSTOCK, "bench", "--dataset", spec, "--ranks", "2", "--verify",
                          "--json"], capture_output=True, text=True, timeout=60)
    assert (run.returncode, run.stderr) == (0, "")
    assert json.loads(run.stdout)["verified"] == 1000


def test_a_file_that_grew_is_opened_anew(attach, tmp_path):
    write(tmp_path, [(b"%d" % n, b"old") for n in range(5)])
    assert values_of(attach(dataset_of(tmp_path).batch(1), job="old")) == [b"old"] * 5
    write(tmp_path, [(b"%d" % n, b"new") for n in range(9)])
    assert values_of(attach(dataset_of(tmp_path).batch(1), job="new")) == [b"new"] * 9


def test_what_is_refused_says_why(attach, tmp_path):
    write(tmp_path / "pickles", [(b"a", b"\x80\x04K\x01.")])
    with pytest.raises(penstock.InvalidArgument, match="pickled objects of Python"):
        attach(penstock.Dataset.lmdb(tmp_path / "pickles").batch(1))
    with lmdb.open(str(tmp_path), max_dbs=1, map_size=1 << 20) as environment:
        environment.open_db(b"several", dupsort=True)
    with pytest.raises(penstock.InvalidArgument, match="several values .MDB_DUPSORT."):
        attach(dataset_of(tmp_path, database="several").batch(1))
