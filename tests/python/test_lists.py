"""Features whose rows differ in length: every source gives the same items as the file
or dataset has, padded, ragged and nested, and each operation keeps to their ends."""

import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile

import numpy as np
import penstock
import pytest

pytestmark = pytest.mark.usefixtures("in_broker")

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
ROOM = 9
ROWS = [list(range(i, i + i % 8)) for i in range(50)]
BOXES = [[[i, j, i + 1.5, j] for j in range(i % 4)] for i in range(50)]
MODULE = f"""
import numpy as np
ROWS = {ROWS!r}
BOXES = {BOXES!r}

class Ragged:
    def __len__(self):
        return len(ROWS)

    def __getitem__(self, i):
        return {{"tokens": ROWS[i], "boxes": np.asarray(BOXES[i], np.float32).reshape(-1, 4)}}

class Own(Ragged):
    def __getitem__(self, i):
        return {{"tokens.length": 7, "tokens": ROWS[i]}}

class Wide(Ragged):
    def __getitem__(self, i):
        return {{"tokens": np.zeros((2, 3 if i == 4 else 2), np.int32)}}
"""
FIELDS = {"tokens": {"dtype": "int64", "max_length": ROOM},
          "boxes": {"dtype": "float32", "shape": [4], "max_length": ROOM}}


@pytest.fixture(scope="module")
def program_broker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modules")
    (folder / "ragged.py").write_text(MODULE)
    with penstock.broker(workers=2, python_path=[folder]) as started:
        yield started


def json_lines(folder):
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps({"tokens": tokens, "boxes": boxes}) + "\n"
                            for tokens, boxes in zip(ROWS, BOXES)))
    return penstock.Dataset.json_lines(path, FIELDS)


def webdataset(folder):
    path = folder / "rows.tar"
    with tarfile.open(path, "w") as tar:
        for i, (tokens, boxes) in enumerate(zip(ROWS, BOXES)):
            npy = io.BytesIO()
            np.save(npy, np.asarray(boxes, np.float32).reshape(-1, 4))
            for name, data in ((f"{i:04}.json", json.dumps({"tokens": tokens}).encode()),
                               (f"{i:04}.boxes.npy", npy.getvalue())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    return penstock.Dataset.webdataset(path, {
        "tokens": {**FIELDS["tokens"], "member": "json", "pointer": "/tokens"},
        "boxes": {**FIELDS["boxes"], "member": "boxes.npy"}})


def called(folder):
    return penstock.Dataset.python("ragged:Ragged",
                                   max_length={"tokens": ROOM, "boxes": ROOM})


def check(batch):
    for name, rows in (("tokens", ROWS), ("boxes", BOXES)):
        wanted = [rows[i] for i in batch.ids]
        assert batch.lengths(name).tolist() == [len(row) for row in wanted]
        padded = batch.padded(name)
        assert padded.shape[1] == max(map(len, wanted))
        assert np.shares_memory(padded, batch[name]) or padded.size == 0
        values, splits = batch.ragged(name)
        for i, row in enumerate(wanted):
            assert padded[i, :len(row)].tolist() == row
            assert not batch[name][i, len(row):].any()
            assert values[splits[i]:splits[i + 1]].tolist() == row
        assert splits[-1] == len(values)


@pytest.mark.parametrize("source", [json_lines, webdataset, called])
def test_every_source_gives_the_items_of_each_row(program_broker, tmp_path, source):
    dataset = source(tmp_path).shuffle(seed=3).batch(8, last="partial").repeat(1)
    with penstock.attach(dataset, job=source.__name__,
                         socket=program_broker.socket) as reader:
        assert reader.element_spec["tokens"] == ((ROOM,), "int64")
        seen = []
        for batch in next(reader.epochs()):
            check(batch)
            seen += batch.ids.tolist()
    assert sorted(seen) == list(range(50))


def test_what_is_no_list_is_told(attach):
    batch = attach(penstock.Dataset.range(4).batch(2)).next()
    for method in (batch.lengths, batch.padded, batch.ragged):
        with pytest.raises(KeyError, match="'value' is no list: .* no value.length"):
            method("value")
        with pytest.raises(KeyError, match="no feature 'x'"):
            method("x")


def test_numbers_that_are_no_lengths_are_told(attach, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"x": [1, 2], "x.length": 3}\n')
    fixed = {"x": {"dtype": "int8", "shape": [2]}, "x.length": {"dtype": "int64"}}
    batch = attach(penstock.Dataset.json_lines(tmp_path / "a.jsonl", fixed).batch(1)).next()
    for method in (batch.lengths, batch.padded, batch.ragged):
        with pytest.raises(penstock.DataLoss, match="'x.length' has 3 to 3, and 'x' has room "
                                                    "for 2"):
            method("x")


def test_a_text_is_a_list_of_bytes(attach, tmp_path):
    (tmp_path / "a.txt").write_text("one\n\nthree\n")
    batch = attach(penstock.Dataset.text_lines(tmp_path / "a.txt", 64).batch(3)).next()
    values, splits = batch.ragged("text")
    assert values.tobytes() == b"onethree" and splits.tolist() == [0, 3, 3, 8]
    assert batch.padded("text").shape == (3, 5)


def test_longer_lists_are_errors_left_out_or_cut(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": [1, 2]}\n{"x": [1, 2, 3]}\n{"x": []}\n')
    fields = {"x": {"dtype": "int8", "max_length": 2}}

    def rows(dataset, job):
        with penstock.attach(dataset.batch(3, last="partial").repeat(1), job=job) as reader:
            return [batch["x"][i, :n].tolist() for batch in next(reader.epochs())
                    for i, n in enumerate(batch.lengths("x"))]

    with pytest.raises(penstock.DataLoss, match="line 2: field 'x': a list of 3; at most 2"):
        rows(penstock.Dataset.json_lines(path, fields), "fail")
    assert rows(penstock.Dataset.json_lines(path, fields).on_error("skip"),
                "skip") == [[1, 2], []]
    assert rows(penstock.Dataset.json_lines(path, fields, longer="cut"),
                "cut") == [[1, 2], [1, 2], []]


def test_a_called_dataset_says_what_it_lacks(program_broker):
    def fails(job, name, **options):
        dataset = penstock.Dataset.python(f"ragged:{name}", **options).batch(5)
        with penstock.attach(dataset, job=job, socket=program_broker.socket) as reader:
            for _ in range(9):
                reader.next()

    with pytest.raises(penstock.InvalidArgument, match="max_length: a sample has no array "
                                                       "'token'; it has tokens"):
        fails("a", "Ragged", max_length={"token": 3, "tokens": 4, "boxes": 3})
    with pytest.raises(penstock.InvalidArgument, match="a sample has a 'tokens.length' of "):
        fails("e", "Own", max_length={"tokens": 9})
    with pytest.raises(penstock.DataLoss, match=r"tokens.* has \d items; at most 4 fit"):
        fails("b", "Ragged", max_length={"tokens": 4, "boxes": 3})
    with pytest.raises(penstock.DataLoss, match=r"shape \[2, 3\].*max_length=\{'tokens'"):
        fails("c", "Wide")
    with pytest.raises(penstock.DataLoss, match=r"shape \[2, 3\]; the first sample has "
                                                r"\[n, 2\]"):
        fails("d", "Wide", max_length={"tokens": 4})


def test_operations_keep_to_the_end_of_a_list(attach, tmp_path):
    dataset = json_lines(tmp_path).map(
        penstock.select(["tokens"]),
        penstock.lookup(list(range(60)), feature="tokens"),
        penstock.pad_sequence(length=6, value=-1, feature="tokens"),
        penstock.rename({"tokens": "ids"})).batch(10)
    batch = attach(dataset).next()
    assert list(batch) == ["ids", "ids.length"]
    for i, row in zip(batch.ids, batch["ids"].tolist()):
        # The first number is that of other words.
        wanted = [token + 1 for token in ROWS[i]][:6]
        assert row == wanted + [-1] * (6 - len(wanted))
    assert batch.lengths("ids").tolist() == [min(len(ROWS[i]), 6) for i in batch.ids]


def test_a_cache_and_a_state_have_lists(attach, tmp_path):
    dataset = json_lines(tmp_path).shuffle(seed=1).batch(7, last="partial").cache(memory="1MiB")
    reader = attach(dataset.repeat(3))
    epochs = []
    for epoch in reader.epochs():
        for batch in epoch:
            check(batch)
            epochs.append((epoch.number, batch.ids.tolist()))
            if epoch.number == 1 and batch.step == 3:
                state = reader.state_dict()
    rest = []
    with penstock.attach(dataset.repeat(3), job="resumed", state=state) as other:
        for epoch in other.epochs():
            for batch in epoch:
                check(batch)
                rest.append((epoch.number, batch.ids.tolist()))
    assert rest == epochs[-len(rest):] and len(rest) == 4 + 8


@pytest.mark.parametrize("lists", ["padded", "nested"])
def test_torch_has_them_padded_and_nested(tmp_path, lists):
    torch = pytest.importorskip("torch")
    import penstock.torch

    dataset = json_lines(tmp_path).batch(8, last="drop").repeat(1)
    with pytest.raises(ValueError, match="lists: wanted 'bound', 'padded' or 'nested'"):
        penstock.torch.DataLoader(dataset, lists="ragged")
    with penstock.torch.DataLoader(dataset, job=lists, lists=lists,
                                   features=("tokens", "boxes")) as loader:
        count = 0
        for tokens, boxes in loader:
            wanted = ROWS[count:count + 8]
            if lists == "padded":
                assert tokens.shape == (8, max(map(len, wanted)))
                assert boxes.shape[2] == 4
            else:
                assert tokens.layout == torch.jagged and tokens.is_contiguous()
                assert boxes.to_padded_tensor(0.).sum() == boxes.values().sum()
                assert [row.tolist() for row in tokens.unbind()] == wanted
                assert [row.tolist() for row in boxes.unbind()] == BOXES[count:count + 8]
            count += 8
        assert count == 48


@pytest.mark.parametrize("lists", ["padded", "ragged"])
def test_tensorflow_has_them_padded_and_ragged(tmp_path, lists):
    pytest.importorskip("tensorflow")
    import penstock.tf

    dataset = json_lines(tmp_path).batch(8, last="drop").repeat(1)
    with pytest.raises(ValueError, match="lists: wanted 'bound', 'padded' or 'ragged'"):
        penstock.tf.dataset(dataset, lists="nested")
    made = penstock.tf.dataset(dataset, job="tf" + lists, lists=lists,
                               features=("tokens", "boxes"))
    count = 0
    for tokens, boxes in made:
        wanted = ROWS[count:count + 8]
        if lists == "padded":
            assert tokens.shape == (8, max(map(len, wanted)))
        else:
            assert tokens.to_list() == wanted
            assert boxes.to_list() == BOXES[count:count + 8]
        count += 8
    assert count == 48
    made.close()


def test_rows_are_chosen_by_their_length(attach, tmp_path):
    dataset = json_lines(tmp_path).filter("tokens.length", min=7).batch(2)
    batch = attach(dataset).next()
    assert batch.lengths("tokens").tolist() == [7, 7]
    check(batch)


def test_the_page_of_lists_is_true(attach, tmp_path):
    page = (pathlib.Path(__file__).parents[2] / "common/spec/map_sequences.md").read_text()
    spec = page.split("```yaml\n")[1].split("```")[0].replace("size: 32", "size: 2")
    (tmp_path / "tokens.txt").write_text("7\n3\n")
    (tmp_path / "train.jsonl").write_text('{"tokens": [7, 3], "boxes": [[0, 0, 9, 9]]}\n'
                                          '{"tokens": [7], "boxes": []}\n'
                                          '{"tokens": [7, 7, 3], "boxes": []}\n')
    (tmp_path / "spec.yaml").write_text("dataset: d\n" + spec)
    batch = attach(tmp_path / "spec.yaml").next()
    assert [row[:n].tolist() for row, n in zip(batch["tokens"], batch.lengths("tokens"))] == [
        [1, 2], [1, 1, 2]]
    assert batch["tokens"][:, 3:].tolist() == [[-100] * 253] * 2
    assert batch.lengths("boxes").tolist() == [1, 0]


def test_peek_shows_lists_to_their_ends(broker, tmp_path):
    (tmp_path / "spec.yaml").write_text(json_lines(tmp_path).batch(4).to_yaml())
    peek = subprocess.run([PENSTOCK, "peek", tmp_path / "spec.yaml"], cwd=tmp_path,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert peek.returncode == 0, peek.stderr
    assert sorted(os.listdir(tmp_path)) == ["rows.jsonl", "spec.yaml"]  # no picture
    shown = [line[line.index("["):line.index("]") + 1]
             for line in peek.stdout.splitlines() if "[" in line]
    assert shown == ["[]", "[1]", "[2, 3]", "[3, 4, 5]"]
