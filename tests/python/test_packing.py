"""Packed rows beside a rendering of their documents in Python: each item of each document
comes once in a pass, in pieces that follow one another, in rows of one length; what comes
beside the items says where the documents are; equally many rows for all ranks; documents
that cannot be read leave their place empty; and what cannot be packed is refused."""

import itertools
import json
import os
import random
import subprocess
import sys

import numpy as np
import penstock
import pytest

pytestmark = pytest.mark.usefixtures("in_broker")

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
RANDOM = random.Random(7)
LENGTH = 64
# Item i of document d is 1000 d + i; most are short, some longer than a row.
LENGTHS = [min(int(RANDOM.lognormvariate(2.6, 1)), 199) for _ in range(400)]
DOCUMENTS = [[1000 * d + i for i in range(n)] for d, n in enumerate(LENGTHS)]
ROOM = 200
OUTPUTS = ["position_ids", "document_ids", "seq_lens", "cu_seqlens", "loss_mask", "records"]
FIELDS = {"tokens": {"dtype": "int32", "max_length": ROOM},
          "labels": {"dtype": "int64", "max_length": ROOM}}


def write(path, documents):
    path.write_text("".join(
        json.dumps({"tokens": tokens, "labels": [-token for token in tokens]}) + "\n"
        for tokens in documents))
    return path


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = write(tmp_path_factory.mktemp("documents") / "rows.jsonl", DOCUMENTS)
    return penstock.Dataset.json_lines(path, FIELDS)


def packed(data, size=8, with_=OUTPUTS, **keys):
    return data.batch(size, pack=penstock.pack(
        LENGTH, feature="tokens", pad={"labels": -100}, with_=with_, **keys))


def pieces_of(batch, mask_first=False):
    """The (document, begin, end) of each row of a batch, once all of the row is found to
    be as it should."""
    count = batch["records"].shape[1]
    for row in range(batch.rows):
        tokens, cu_seqlens = batch["tokens"][row], batch["cu_seqlens"][row]
        lengths = [int(n) for n in batch["seq_lens"][row] if n]
        used = sum(lengths)
        assert 0 < used <= LENGTH == len(tokens)
        assert not batch["seq_lens"][row, len(lengths):].any()
        ends = list(itertools.accumulate(lengths))
        assert cu_seqlens.dtype == np.int32
        assert cu_seqlens.tolist() == [0, *ends] + [LENGTH] * (count + 1 - len(ends))
        assert batch["records"][row, len(lengths):].tolist() == [-1] * (count - len(lengths))
        positions, documents, mask, pieces = [], [], [], []
        for i, (end, length) in enumerate(zip(ends, lengths)):
            piece = tokens[end - length:end]
            record, begin = divmod(int(piece[0]), 1000)
            assert piece.tolist() == DOCUMENTS[record][begin:begin + length]
            assert batch["records"][row, i] == record
            pieces.append((record, begin, begin + length))
            positions += range(length)
            documents += [i] * length
            mask += [int(not mask_first)] + [1] * (length - 1)
        rest = LENGTH - used
        assert not tokens[used:].any()
        assert batch["labels"][row].tolist() == [
            -int(token) for token in tokens[:used]] + [-100] * rest
        assert batch["position_ids"][row].tolist() == positions + [0] * rest
        assert batch["document_ids"][row].tolist() == documents + [-1] * rest
        assert batch["loss_mask"][row].tolist() == mask + [0] * rest
        yield pieces


def check_pass(pieces, used=lambda n: n):
    """Each item of each document, or its first `used`, is there once."""
    assert len(pieces) == len(set(pieces))
    for record, length in enumerate(LENGTHS):
        at = 0
        for _, begin, end in sorted(piece for piece in pieces if piece[0] == record):
            assert begin == at
            at = end
        assert at == used(length), record


USED = {"split": lambda n: n, "cut": lambda n: min(n, LENGTH),
        "drop": lambda n: n if n <= LENGTH else 0}


@pytest.mark.parametrize("shuffled", [True, False])
@pytest.mark.parametrize("keys", [
    {}, {"method": "first_fit"}, {"method": "split"}, {"longer": "cut"},
    {"longer": "drop", "documents": 6}, {"method": "split", "window": 50},
    {"mask_first": True, "window": 30}], ids=str)
def test_each_item_comes_once_in_each_pass(attach, dataset, keys, shuffled):
    data = dataset.shuffle(seed=3) if shuffled else dataset
    reader = attach(packed(data, **keys).repeat(2))
    assert set(reader.element_spec) == {"tokens", "labels", *OUTPUTS}
    passes = []
    for epoch in reader.epochs():
        rows, ids = [], []
        for batch in epoch:
            rows += pieces_of(batch, keys.get("mask_first", False))
            ids += batch.ids.tolist()
            assert batch["records"].shape[1] == keys.get("documents", batch["records"].shape[1])
        assert sorted(ids) == list(range(len(ids)))
        check_pass([piece for row in rows for piece in row],
                   USED[keys.get("longer", "split")])
        if keys.get("method") != "split":
            # Only documents longer than a row are in pieces.
            assert all(end - begin == min(LENGTHS[record] - begin, LENGTH)
                       for row in rows for record, begin, end in row)
        passes.append(rows)
    assert len(passes[0]) == len(passes[1])
    assert (passes[0] == passes[1]) == (not shuffled)
    if shuffled:
        neighbours = [{frozenset(piece[0] for piece in row) for row in rows if len(row) > 1}
                      for rows in passes]
        # Documents whose lengths are rare in their window keep their neighbours.
        assert len(neighbours[0] & neighbours[1]) < len(neighbours[0]) * 2 / 3
    full = sum(end - begin for row in passes[0] for _, begin, end in row)
    assert full / LENGTH / len(passes[0]) > (
        0.75 if keys.keys() & {"window", "documents"} else 0.97)


def test_all_ranks_get_equally_many_rows_of_the_same_plan(dataset):
    made = packed(dataset.shuffle(seed=3), 9)
    with_one = []
    for batch in penstock.attach(made, job="packed-one"):
        with_one += pieces_of(batch)
    readers = [penstock.attach(made, rank, 3, job="packed-three") for rank in range(3)]
    with_three = []
    for batches in zip(*readers, strict=True):
        counts = [batch.rows for batch in batches]
        assert max(counts) - min(counts) <= 1
        for batch in batches:
            with_three += pieces_of(batch)
    assert with_three == with_one
    for reader in readers:
        reader.close()


@pytest.mark.parametrize("delivery", ["dynamic", "broadcast", "independent"])
def test_every_delivery_has_whole_passes(dataset, delivery):
    made = packed(dataset.shuffle(seed=3))
    readers = [penstock.attach(made, rank, 2, job=f"packed-{delivery}", delivery=delivery)
               for rank in range(2)]
    of_rank = [[], []]
    left = list(enumerate(readers))
    while left:
        for rank, reader in list(left):
            batch = next(iter(reader), None)
            if batch is None:
                left.remove((rank, reader))
                continue
            of_rank[rank] += [piece for row in pieces_of(batch) for piece in row]
            del batch
    for reader in readers:
        reader.close()
    for pieces in [of_rank[0] + of_rank[1]] if delivery == "dynamic" else of_rank:
        check_pass(pieces)
    assert (of_rank[0] == of_rank[1]) == (delivery == "broadcast")


def test_documents_that_functions_make_are_packed(dataset, tmp_path):
    (tmp_path / "documents.py").write_text(
        "def negative(row):\n"
        "    row['tokens'] = -row['tokens']\n"
        "    return row\n\n\n"
        "def longer(row):\n"
        "    row['tokens.length'] += 1\n"
        "    return row\n")
    data = dataset.map(penstock.drop("labels"))
    features = {"tokens": penstock.TensorSpec((ROOM,), "int32"),
                "tokens.length": penstock.TensorSpec((), "int64")}

    def attach_there(function):
        made = data.map(penstock.python(f"documents:{function}", features)).batch(
            8, pack=penstock.pack(LENGTH))
        return penstock.attach(made, job=function, socket=broker.socket, timeout_s=60)
    with penstock.broker(workers=2, python_path=[tmp_path]) as broker:
        items = []
        with attach_there("negative") as reader:
            for batch in reader:
                items += (-batch["tokens"][batch["tokens"] < 0]).tolist()
        assert sorted(items) == sorted(sum(DOCUMENTS, []))[1:]  # without item 0 of document 0
        with attach_there("longer") as reader:
            with pytest.raises(penstock.DataLoss, match="`map` may not change its length"):
                list(reader)


@pytest.mark.parametrize("across", [False, True])
def test_parts_of_a_mix_share_rows_only_when_asked(attach, tmp_path, across):
    files = [write(tmp_path / "a.jsonl", DOCUMENTS[:100]),
             write(tmp_path / "b.jsonl", DOCUMENTS[100:])]
    mix = penstock.Dataset.mix([penstock.Dataset.json_lines(file, FIELDS) for file in files],
                               [1, 3], when_out="drop")
    made = packed(mix.shuffle(seed=1), across_parts=across).repeat(2)
    for epoch in attach(made).epochs():
        rows = [row for batch in epoch for row in pieces_of(batch)]
        check_pass([piece for row in rows for piece in row])
        both = [row for row in rows if len({piece[0] < 100 for piece in row}) == 2]
        assert bool(both) == across
        if not across:
            # Weights are shares of the rows, until the first part is out.
            first = [row[0][0] < 100 for row in rows]
            count = sum(first) * 4 - 8
            assert abs(sum(first[:count]) - count / 4) <= 1


def test_weights_of_packed_parts_may_change(attach, tmp_path):
    files = [write(tmp_path / "a.jsonl", DOCUMENTS[:200]),
             write(tmp_path / "b.jsonl", DOCUMENTS[200:])]
    mix = penstock.Dataset.mix([penstock.Dataset.json_lines(file, FIELDS) for file in files],
                               [1, 1], when_out="repeat")
    reader = attach(packed(mix.shuffle(seed=1), 4).repeat(None))
    reader.set_weights([1, 3], epoch=0, row=20)
    for step, batch in zip(range(10), reader):
        first = [row[0][0] < 200 for row in pieces_of(batch)]
        assert sum(first) == (2 if step < 5 else 1)


def test_map_runs_before_documents_are_packed(attach, dataset):
    made = dataset.map(penstock.drop("labels"), penstock.cast("int64", feature="tokens")).batch(
        4, pack=penstock.pack(LENGTH, pad={"tokens": 7}))
    for batch in attach(made):
        assert batch["tokens"].dtype == np.int64
        assert set(batch) == {"tokens"}


def test_rows_that_are_kept_are_the_same(attach, dataset):
    made = packed(dataset.shuffle(seed=1)).repeat(2)
    plain, kept = ([(batch.ids.tolist(), batch["tokens"].tolist())
                    for batch in attach(each, job=f"packed-kept-{name}")]
                   for name, each in (("no", made), ("yes", made.cache(memory="10M"))))
    assert kept == plain


def test_a_broken_document_leaves_its_place_empty(attach, tmp_path):
    # Item i of the vocabulary becomes i; 5 is not in it.
    path = write(tmp_path / "rows.jsonl", [[d] * 9 for d in range(1, 21)])
    known = [d for d in range(21) if d != 5]
    data = penstock.Dataset.json_lines(path, FIELDS).map(
        penstock.drop("labels"), penstock.lookup(known, oov_buckets=0, feature="tokens"))
    made = data.on_error("skip").batch(2, pack=penstock.pack(
        32, pad={"tokens": -1}, with_=["loss_mask", "seq_lens"]))
    items, lengths, rows = [], [], 0
    reader = attach(made)
    for batch in reader:
        rows += batch.rows
        assert (batch["loss_mask"] == (batch["tokens"] >= 0)).all()
        items += batch["tokens"][batch["tokens"] >= 0].tolist()
        lengths += batch["seq_lens"][batch["seq_lens"] > 0].tolist()
    assert rows == 7  # three of nine items in each
    assert sorted(items) == sorted(9 * list(range(1, 20)))
    assert lengths == [9] * 20  # that of the broken one too


def test_the_command_tells_and_shows_it(dataset, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(packed(dataset.shuffle(seed=1)).to_yaml())

    def run(*arguments):
        return subprocess.run([PENSTOCK, *arguments], stdout=subprocess.PIPE, text=True,
                              check=True, timeout=100).stdout
    told = json.loads(run("check", "--json", spec))
    packing = told["packing"]
    assert packing["items"] == sum(LENGTHS)
    assert packing["documents"] == sum(1 for n in LENGTHS if n)
    assert packing["sequences"] == told["records"]
    assert packing["fill"] == pytest.approx(
        packing["items"] / LENGTH / told["records"])
    assert told["steps_per_epoch"] == -(-told["records"] // 8)
    assert f"{packing['fill']:.2%}".replace("%", " % full") in run("check", spec)
    assert "cu_seqlens" in run("peek", spec)
    verified = json.loads(run("bench", "--dataset", spec, "--ranks", "2", "--verify", "--json"))
    assert verified["verified"] == told["records"]


MIX = penstock.Dataset.mix


@pytest.mark.parametrize("change, words", [
    (lambda d: d.batch(4, pack=penstock.pack(LENGTH)), "'tokens' and 'labels' are lists"),
    (lambda d: d.batch(4, pack=penstock.pack(LENGTH, feature="words")),
     "there is no 'words'; rows have"),
    (lambda d: packed(d, by="words"), "no column 'words'"),
    (lambda d: packed(d, longer="fail"), "`longer` is fail"),
    (lambda d: packed(d, method="split", longer="cut"), "leave this out"),
    (lambda d: packed(d, with_=[], mask_first=True), "add it to `with`"),
    (lambda d: packed(d.shard_policy("file")), "use `shard: data`"),
    (lambda d: packed(d.on_error("substitute")), "use `on_error: skip`"),
    (lambda d: packed(MIX([d, d]).take(9)), "put `select` into the parts"),
    (lambda d: packed(MIX([d, MIX([d, d])])), "a mix itself, whose parts would share"),
    (lambda d: packed(d.sample(9, seed=1)), "a sample has other records in each pass"),
    (lambda d: d.batch(4, pack=penstock.pack(LENGTH, feature="tokens", pad={"labels": 1 << 40,
                                                                           "tokens": 1 << 40})),
     "pad.tokens: 1099511627776 is no value of"),
    (lambda d: d.batch(4, pack=penstock.pack(LENGTH, feature="tokens", pad={"x": 1})),
     "pad.x: there is no such list"),
    (lambda d: d.map(penstock.rename({"labels": "loss_mask"})).batch(4, pack=penstock.pack(
        LENGTH, feature="tokens", with_=["loss_mask"])), "a list 'loss_mask'"),
    (lambda d: d.batch(4, buckets=penstock.buckets("tokens.length"),
                       pack=penstock.pack(LENGTH)), "leave out `buckets`"),
    (lambda d: penstock.Dataset.range(9).batch(4, pack=penstock.pack(LENGTH)),
     "rows have no list to pack.*`megatron` gives documents without a `sequence_length`"),
])
def test_what_cannot_be_packed_is_told(attach, dataset, change, words):
    with pytest.raises(penstock.InvalidArgument, match=words):
        attach(change(dataset))


def test_values_beside_lists_are_refused(attach, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"tokens": [1, 2], "n": 3}\n')
    data = penstock.Dataset.json_lines(path, {
        "tokens": {"dtype": "int32", "max_length": 4}, "n": {"dtype": "int64"}})
    with pytest.raises(penstock.InvalidArgument, match="drop: {features: n}"):
        attach(data.batch(2, pack=penstock.pack(8)))
    with pytest.raises(penstock.InvalidArgument, match=r"'n' is n int64 \[\] in every record"):
        attach(data.batch(2, pack=penstock.pack(8, feature="n")))


def test_lists_of_unlike_lengths_are_errors_of_their_sample(attach, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"tokens": [1, 2], "labels": [1]}\n')
    data = penstock.Dataset.json_lines(path, FIELDS)
    with pytest.raises(penstock.DataLoss, match="'labels' has a length of 1, and 'tokens'"):
        list(attach(packed(data, 1)))


def test_a_token_that_is_nowhere_is_told(attach, tmp_path):
    tokens = np.arange(1, 4001, dtype=np.uint16)
    tokens.tofile(tmp_path / "a.bin")

    def documents(**border):
        return penstock.Dataset.tokens(tmp_path / "a.bin", documents=border).batch(
            1, pack=penstock.pack(5000))
    with pytest.warns(match="each of 1 file is one document, the longest of 4000 tokens: "
                            "`documents: {end: 50256}` occurs nowhere inside of it"):
        attach(documents(end=50256), job="one")
    # A state knows other documents that make as many sequences.
    state = attach(documents(end=7), job="state").state_dict()
    with pytest.raises(penstock.FailedPrecondition, match="belongs to other data"):
        attach(documents(begin=7), job="other", state=state)
    with pytest.raises(penstock.InvalidArgument, match=r"not the path of a file\), got 'a.json'"):
        attach(documents(end=7), job="path", state="a.json")


def test_why_no_document_is_left_is_told(failure, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"tokens": "no list"}\n' * 3)
    text = failure(penstock.Dataset.json_lines(
        tmp_path / "a.jsonl", {"tokens": {"dtype": "int64", "max_length": 9}}).batch(
            1, pack=penstock.pack(16)).on_error("skip"))
    assert "of 3 documents none has an item" in text and "a.jsonl, line 1" in text
