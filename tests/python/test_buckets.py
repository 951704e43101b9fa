"""Batches of rows of like length: each row comes once in a pass with its own items, in a
batch as wide as its bucket, for any number of ranks and in every mode; and what cannot be
sorted is refused."""

import json
import os
import random
import subprocess
import sys

import penstock
import pytest

BY_LENGTH = penstock.buckets("tokens.length")

pytestmark = pytest.mark.usefixtures("in_broker")

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
RANDOM = random.Random(5)
ROWS = [[RANDOM.randrange(1000) for _ in range(RANDOM.randrange(0, 90))] for _ in range(300)]
MASKS = [[1] * (len(row) // 2) for row in ROWS]
ROOM = 100
FIELDS = {"tokens": {"dtype": "int32", "max_length": ROOM},
          "mask": {"dtype": "uint8", "max_length": ROOM},
          "n": {"dtype": "int64"}}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("lists") / "rows.jsonl"
    path.write_text("".join(
        json.dumps({"tokens": tokens, "mask": mask, "n": i}) + "\n"
        for i, (tokens, mask) in enumerate(zip(ROWS, MASKS))))
    return penstock.Dataset.json_lines(path, FIELDS)


def check(batch, bounds):
    """The rows of a batch are those of the file, no wider than their bucket."""
    wanted = [ROWS[i] for i in batch.ids]
    assert batch.lengths("tokens").tolist() == [len(row) for row in wanted]
    assert batch["tokens"].shape == (batch.rows, bounds[batch.part])
    for i, row in enumerate(wanted):
        assert batch["tokens"][i, :len(row)].tolist() == row
        assert not batch["tokens"][i, len(row):].any()
        mask = MASKS[batch.ids[i]]
        assert batch["mask"][i, :len(mask)].tolist() == mask
        assert batch["n"][i] == batch.ids[i]
        if batch.part > 0:
            assert len(row) > bounds[batch.part - 1]
    values, splits = batch.ragged("tokens")
    assert values.tolist() == sum(wanted, [])
    assert splits[-1] == len(values)


def test_each_row_comes_once_in_a_batch_of_its_bucket(attach, dataset):
    bounds = [16, 32, 64, max(map(len, ROWS))]
    made = dataset.shuffle(seed=1).batch(
        16, buckets=penstock.buckets("tokens.length", boundaries=[16, 32, 64])).repeat(2)
    reader = attach(made)
    assert reader.element_spec["tokens"].shape[0] is None
    orders = []
    for epoch in reader.epochs():
        ids = []
        for batch in epoch:
            check(batch, bounds)
            ids += batch.ids.tolist()
        assert sorted(ids) == list(range(300))
        orders.append(ids)
    assert orders[0] != orders[1]


@pytest.mark.parametrize("delivery, ranks", [("split", 3), ("dynamic", 1), ("broadcast", 3)])
def test_every_mode_has_the_same_rows(dataset, delivery, ranks):
    made = dataset.shuffle(seed=1).batch(16, buckets=BY_LENGTH).repeat(1)
    readers = [penstock.attach(made, rank, ranks, job=f"modes-{delivery}", delivery=delivery)
               for rank in range(ranks)]
    ids = []
    for batches in zip(*readers):
        for batch in batches:
            for i, row in enumerate(batch.ids):
                assert batch["tokens"][i, :len(ROWS[row])].tolist() == ROWS[row]
            ids += batch.ids.tolist()
    for reader in readers:
        reader.close()
    assert sorted(ids) == sorted(list(range(300)) * (ranks if delivery == "broadcast" else 1))


def test_all_ranks_get_equally_many_tokens(dataset):
    made = dataset.shuffle(seed=1).batch(
        tokens_per_rank=512, buckets=penstock.buckets("tokens.length", count=20),
        last="drop").repeat(1)
    readers = [penstock.attach(made, rank, 2, job="tokens") for rank in range(2)]
    steps = 0
    for batches in zip(*readers):
        shapes = {batch["tokens"].shape for batch in batches}
        assert len(shapes) == 1
        rows, width = shapes.pop()
        assert rows * width <= 512 < (rows + 1) * width
        steps += 1
    assert steps > 3
    for reader in readers:
        reader.close()


def test_a_slot_has_room_for_its_tokens_not_for_its_bound(tmp_path, in_broker):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"tokens": [1] * (1 + i % 64)}) + "\n"
                            for i in range(2000)))
    made = penstock.Dataset.json_lines(
        path, {"tokens": {"dtype": "int64", "max_length": 1 << 16}})
    bytes_of = {}
    for name, batch in (("bound", {"size": 64}),
                        ("tokens", {"tokens": 4096, "buckets": BY_LENGTH})):
        spec = tmp_path / f"{name}.yaml"
        spec.write_text(made.batch(**batch).to_yaml())
        done = subprocess.run([PENSTOCK, "check", "--json", spec], stdout=subprocess.PIPE,
                              text=True, check=True)
        bytes_of[name] = json.loads(done.stdout)["memory_bytes"]
    # 4,096 tokens of 8 bytes in each of 5 slots; 64 rows of 65,536.
    assert bytes_of["tokens"] < 1 << 20
    assert bytes_of["bound"] > 5 * 64 * (8 << 16)


def test_bench_verifies_it(dataset, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(dataset.shuffle(seed=1).batch(16, buckets=BY_LENGTH).to_yaml())
    done = subprocess.run([PENSTOCK, "bench", "--dataset", spec, "--ranks", "2", "--verify",
                           "--json"], stdout=subprocess.PIPE, text=True, check=True,
                          timeout=100)
    assert json.loads(done.stdout)["verified"] == 300


def test_check_shows_the_buckets(dataset, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(dataset.batch(16, buckets=penstock.buckets(
        "tokens.length", boundaries=[16, 32, 64])).to_yaml())
    told = subprocess.run([PENSTOCK, "check", spec], stdout=subprocess.PIPE, text=True,
                          check=True, timeout=100).stdout
    longest = max(map(len, ROWS))
    assert f"4 of rows up to 16, 32, 64, {longest}\n" in told
    assert f"16 to {longest}" in told and told.count("tokens.length") == 1


def test_any_number_may_sort_the_rows(attach, dataset):
    made = dataset.batch(30, buckets=penstock.buckets("n", count=10))
    for batch in attach(made):
        assert batch.ids.tolist() == list(range(30 * batch.part, 30 * batch.part + 30))


def test_lists_of_rows_that_are_kept_are_those_of_their_bucket(attach, dataset):
    made = dataset.shuffle(seed=1).batch(16, buckets=BY_LENGTH).repeat(2)
    plain, kept = ([(batch.ids.tolist(), batch["tokens"].tolist())
                    for batch in attach(each, job=f"kept-{name}")]
                   for name, each in (("no", made), ("yes", made.cache(memory="10M"))))
    assert kept == plain


@pytest.mark.parametrize("change, words", [
    (lambda d: d.batch(4, buckets=penstock.buckets("words.length")),
     "no column 'words.length'; it has"),
    (lambda d: d.batch(tokens=40), "wanted `buckets: {by: COLUMN}` too"),
    (lambda d: d.batch(tokens=8, buckets=BY_LENGTH),
     "batch.tokens: 8, and rows have up to"),
    (lambda d: d.batch(4, buckets=penstock.buckets("tokens.length", boundaries=[8, 8])),
     "8 after 8"),
    (lambda d: d.shuffle(seed=1, window_files=1).batch(4, buckets=penstock.buckets("n")),
     "leave out shuffle.window_files"),
    (lambda d: d.batch(4, buckets=penstock.buckets("n")).shard_policy("file"), "use `shard: data`"),
    (lambda d: penstock.Dataset.mix([d, d]).batch(4, buckets=penstock.buckets("n")),
     "a mix has other records"),
    (lambda d: penstock.Dataset.stream({"x": penstock.TensorSpec((), "int64")}).batch(
        4, buckets=penstock.buckets("x")), "come one after the other"),
])
def test_what_cannot_be_sorted_is_told(attach, dataset, change, words):
    with pytest.raises(penstock.InvalidArgument, match=words):
        attach(change(dataset))
