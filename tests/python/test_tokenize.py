"""Promise: `tokenize` gives what Hugging Face's tokenizers give of each text, whatever
other features the row has, and what is wrong with a file or a text is told with its way
out. Method: every token beside the library's own; one test for each thing that can be
wrong."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import penstock
import pytest

tokenizers = pytest.importorskip("tokenizers", reason="no tokenizers")

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
Dataset = penstock.Dataset
TEXTS = ["", "the quick brown fox", "Jumps over the lazy dog. " * 9, "né à Zürich, 北京 😀",
         "a", "tab\tnew\\nline \x00 zero?", "[SEP] the [UNK] [CLS]", "ﬁ ẞ İ ǅ", " ", "!?" * 40]
ROOM = 512


def train(model, trainer, **parts):
    tokenizer = tokenizers.Tokenizer(model)
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def like_bert():
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer = train(
        tokenizers.models.WordPiece(unk_token="[UNK]"),
        tokenizers.trainers.WordPieceTrainer(vocab_size=120, special_tokens=special,
                                             show_progress=False),
        normalizer=tokenizers.normalizers.BertNormalizer(),
        pre_tokenizer=tokenizers.pre_tokenizers.BertPreTokenizer())
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer


def like_gpt2():
    return train(
        tokenizers.models.BPE(),
        tokenizers.trainers.BpeTrainer(
            vocab_size=300, show_progress=False,
            initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        pre_tokenizer=tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False))


KINDS = {"like_bert": like_bert, "like_gpt2": like_gpt2}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizers")
    for name, make in KINDS.items():
        make().save(str(folder / f"{name}.json"))
    return folder


def texts_of(folder, texts=TEXTS, **more):
    """Rows of a text, a number, and what more names."""
    path = folder / "texts.jsonl"
    path.write_text("".join(
        json.dumps({"id": i, "text": text, **{name: of[i] for name, of in more.items()}}) + "\n"
        for i, text in enumerate(texts)))
    fields = {"id": {"dtype": "int64"}, "text": {"max_bytes": ROOM}}
    return Dataset.json_lines(path, {**fields, **{name: {"max_bytes": ROOM} for name in more}})


def rows_of(reader, name):
    """By number, the tokens of a row; behind them are zeros."""
    found = {}
    for batch in reader:
        for i, row in enumerate(batch["id"].tolist()):
            length = batch.lengths(name)[i]
            assert not batch[name][i, length:].any()
            found[row] = batch[name][i, :length].tolist()
    return [found[i] for i in range(len(found))]


@pytest.mark.parametrize("special", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_tokens_are_those_of_tokenizers(attach, files, tmp_path, kind, special):
    file = files / f"{kind}.json"
    wanted = [tokenizers.Tokenizer.from_file(str(file)).encode(
        text, add_special_tokens=special).ids for text in TEXTS]
    reader = attach(texts_of(tmp_path).shuffle(1).map(penstock.tokenize(
        file, 300, add_special_tokens=special)).batch(3, last="partial"))
    assert reader.element_spec["text"] == ((300,), "int32")
    assert "text_bytes" not in reader.element_spec
    assert rows_of(reader, "text") == wanted


@pytest.mark.parametrize("room", [3, 4, 17, 300])
def test_longer_texts_are_truncated_as_by_tokenizers(attach, files, tmp_path, room):
    file = str(files / "like_bert.json")
    theirs = tokenizers.Tokenizer.from_file(file)
    theirs.enable_truncation(room)
    reader = attach(texts_of(tmp_path).map(
        penstock.tokenize(file, room, longer="cut", dtype="int64", to="input_ids")).batch(4))
    assert reader.element_spec["input_ids"] == ((room,), "int64")
    rows = rows_of(reader, "input_ids")
    assert rows == [theirs.encode(text).ids for text in TEXTS]
    assert all(row[0] == 2 and row[-1] == 3 for row in rows)


def test_side_and_strategy_of_the_file_are_kept_and_its_padding_is_not(attach, files,
                                                                       tmp_path):
    theirs = tokenizers.Tokenizer.from_file(str(files / "like_bert.json"))
    theirs.enable_truncation(5, direction="left", strategy="only_first")
    theirs.enable_padding(length=40)
    theirs.save(str(tmp_path / "left.json"))
    theirs.no_padding()
    theirs.enable_truncation(8, direction="left", strategy="only_first")
    reader = attach(texts_of(tmp_path).map(
        penstock.tokenize(tmp_path / "left.json", 8, longer="cut")).batch(4))
    assert rows_of(reader, "text") == [theirs.encode(text).ids for text in TEXTS]


def test_pairs_and_their_type_ids(attach, files, tmp_path):
    other = TEXTS[::-1]
    file = files / "like_bert.json"
    theirs = tokenizers.Tokenizer.from_file(str(file))
    theirs.enable_truncation(20)
    wanted = [theirs.encode(*pair) for pair in zip(TEXTS, other)]
    dataset = texts_of(tmp_path, answer=other).map(penstock.tokenize(
        file, 20, longer="cut", feature=["text", "answer"], to="input_ids",
        type_ids="token_type_ids")).batch(4)
    assert rows_of(attach(dataset, job="ids"), "input_ids") == [each.ids for each in wanted]
    types = rows_of(attach(dataset, job="types"), "token_type_ids")
    assert types == [each.type_ids for each in wanted]
    assert any(1 in row for row in types)


def test_other_features_pass_by_the_process(attach, files, tmp_path):
    pictures = pytest.importorskip("PIL.Image", reason="no Pillow")
    import io
    import tarfile
    pixels = np.random.default_rng(1).integers(0, 256, (len(TEXTS), 8, 8, 3), np.uint8)
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for i, text in enumerate(TEXTS):
            png = io.BytesIO()
            pictures.fromarray(pixels[i]).save(png, "PNG")
            for name, data in ((f"{i:03}.png", png.getvalue()), (f"{i:03}.txt", text.encode()),
                               (f"{i:03}.cls", str(i).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                tar.addfile(member, io.BytesIO(data))
    dataset = Dataset.webdataset(tmp_path / "a.tar", {
        "image": {"member": "png", "encoded": True}, "text": {"member": "txt", "max_bytes": ROOM},
        "id": {"member": "cls", "dtype": "int64", "shape": []}})
    file = files / "like_gpt2.json"
    theirs = tokenizers.Tokenizer.from_file(str(file))
    reader = attach(dataset.map(
        penstock.tokenize(file, 300), penstock.decode_image(8),
        penstock.pad_sequence(299, -100, feature="text")).batch(len(TEXTS)))
    batch = reader.next()
    np.testing.assert_array_equal(batch["image"], pixels)
    for i, text in enumerate(TEXTS):
        ids = theirs.encode(text).ids
        assert batch["text"][i].tolist() == ids + [-100] * (299 - len(ids))


@pytest.mark.parametrize("at", [0, 1, 2, None])
@pytest.mark.parametrize("kept", ["memory", "disk", "snapshot"])
def test_tokens_are_kept(files, tmp_path, monkeypatch, kept, at):
    """Before, after and behind the step: the same rows, which come from what keeps them."""
    monkeypatch.setenv("PENSTOCK_SNAPSHOT_PATH", str(tmp_path))
    file = files / "like_gpt2.json"
    theirs = tokenizers.Tokenizer.from_file(str(file))
    wanted = [theirs.encode(text).ids + [-1] * (299 - len(theirs.encode(text).ids))
              for text in TEXTS]
    dataset = texts_of(tmp_path).shuffle(1).map(
        penstock.tokenize(file, 300), penstock.pad_sequence(299, -1, feature="text")).batch(
            3, last="partial").repeat(3)
    dataset = (dataset.snapshot(tmp_path / "kept", at=at) if kept == "snapshot"
               else dataset.cache(**{kept: "8M"}, at=at))
    with penstock.broker(workers=2) as own:
        for _ in range(2):
            rows = [{} for _ in range(3)]
            with penstock.attach(dataset, job="kept", socket=own.socket, timeout_s=60) as reader:
                for epoch in reader.epochs():
                    for batch in epoch:
                        rows[epoch.number].update(zip(batch["id"].tolist(),
                                                      batch["text"].tolist()))
                assert rows == [dict(enumerate(wanted))] * 3
                assert hits_of(own, "kept") >= len(TEXTS)


def hits_of(broker, job):
    status = json.loads(subprocess.run([PENSTOCK, "status", "--json", "--socket", broker.socket],
                                       stdout=subprocess.PIPE, check=True).stdout)
    hits, = (each["cache_hits"] for each in status["jobs"] if each["job"] == job)
    return hits


# Tokens are characters; what it is asked for is a line of a file.
FAKE = """
import os
__version__ = os.environ["FAKE_VERSION"]
class Encoding:
    def __init__(self, text):
        self.ids = list(map(ord, text))
    def __len__(self):
        return len(self.ids)
class Tokenizer:
    model = truncation = None
    from_buffer = staticmethod(lambda text: Tokenizer())
    def num_special_tokens_to_add(self, pair):
        return 0
    def no_padding(self):
        pass
    def no_truncation(self):
        pass
    def encode_batch(self, texts, add_special_tokens):
        with open(os.environ["FAKE_CALLS"], "a") as calls:
            calls.write(f"{len(texts)}\\n")
        if "dies" in texts:
            os._exit(3)
        if "refused" in texts:
            raise ValueError("no such text")
        return [Encoding(text) for text in texts]
"""


@pytest.fixture
def fake(tmp_path, monkeypatch):
    """A broker of one worker with tokenizers whose calls are counted; the calls' sizes."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/tokenizers.py").write_text(FAKE)
    (tmp_path / "fake.json").write_text("{}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls"))
    monkeypatch.setenv("FAKE_VERSION", "1")
    monkeypatch.setenv("PENSTOCK_SNAPSHOT_PATH", str(tmp_path))

    def sizes():
        return [int(size) for size in (tmp_path / "calls").read_text().split()]
    with penstock.broker(workers=1) as own:
        yield own, sizes


def characters(rows):
    return ["".join(map(chr, row)) for row in rows]


def test_a_call_has_several_rows(fake, tmp_path):
    own, sizes = fake
    texts = [f"row {i}" for i in range(2000)]
    dataset = texts_of(tmp_path, texts).shuffle(4).map(
        penstock.tokenize(tmp_path / "fake.json", 16)).batch(500)
    rows = rows_of(penstock.attach(dataset, socket=own.socket, timeout_s=60), "text")
    assert characters(rows) == texts
    assert sum(sizes()) == len(texts)
    assert len(sizes()) < len(texts) / 4


def test_lengths_are_found_with_several_rows_a_call(fake, tmp_path):
    own, sizes = fake
    texts = ["refused" if i == 1234 else f"row {i}" for i in range(2000)]
    dataset = texts_of(tmp_path, texts).map(
        penstock.tokenize(tmp_path / "fake.json", 16), penstock.drop("id")).batch(
            8, pack=penstock.pack(64, with_=["records", "seq_lens"])).on_error("skip")
    with pytest.warns(match="1 of 2000 records have no 'text.length', the first of them"):
        reader = penstock.attach(dataset, socket=own.socket, timeout_s=60)
    assert sizes()[:19] == 19 * [64]  # then one fails, and its rows come alone
    found = {}
    for batch in reader:
        for row, records, lengths in zip(batch["text"], batch["records"], batch["seq_lens"]):
            begin = 0
            for record, length in zip(records.tolist(), lengths.tolist()):
                if record >= 0:
                    found[record] = "".join(map(chr, row[begin:begin + length]))
                begin += length
    assert found == {i: text for i, text in enumerate(texts) if i != 1234}


@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_a_row_that_fails_costs_no_other(fake, tmp_path, on_error):
    own, sizes = fake
    wrong = {77: "dies", 78: "refused", 300: "refused", 301: "x" * 40}
    texts = [wrong.get(i, f"row {i}") for i in range(600)]
    dataset = texts_of(tmp_path, texts).map(
        penstock.tokenize(tmp_path / "fake.json", 16)).batch(200).on_error(on_error)
    found = []
    for batch in penstock.attach(dataset, socket=own.socket, timeout_s=60):
        for i in range(batch.valid_rows):
            text = "".join(map(chr, batch["text"][i, :batch.lengths("text")[i]]))
            found.append((int(batch["id"][i]), text))
    good = [i for i in range(600) if i not in wrong]
    if on_error == "skip":
        assert [number for number, _ in found] == good
    else:
        assert [number for number, _ in found] == [
            i if i not in wrong else min(j for j in good if j > i) for i in range(600)]
    assert all(text == texts[number] for number, text in found)
    assert max(sizes()) > 1


def test_a_text_that_ends_its_process_is_named(fake, tmp_path):
    own, _ = fake
    texts = ["dies" if i == 33 else "row" for i in range(64)]
    dataset = texts_of(tmp_path, texts).map(
        penstock.tokenize(tmp_path / "fake.json", 16)).batch(64)
    with pytest.raises(penstock.Error, match="sample 33 .*twice at this sample"):
        for _ in penstock.attach(dataset, socket=own.socket, timeout_s=60):
            pass


def test_tokens_of_another_version_are_not_those_that_are_kept(fake, tmp_path, monkeypatch):
    own, sizes = fake
    dataset = texts_of(tmp_path, ["a", "b"]).map(
        penstock.tokenize(tmp_path / "fake.json", 16)).batch(2)
    snapshot = dataset.snapshot(tmp_path / "kept")
    for each in (snapshot, snapshot, dataset.cache(disk="1M")):
        for _ in penstock.attach(each, socket=own.socket, timeout_s=60):
            pass
    made = sum(sizes())
    monkeypatch.setenv("FAKE_VERSION", "2")
    with penstock.broker(workers=1) as other:
        for _ in penstock.attach(dataset.cache(disk="1M"), socket=other.socket, timeout_s=60):
            pass
        assert sum(sizes()) == made + 2
        with pytest.raises(penstock.FailedPrecondition, match="kept"):
            penstock.attach(snapshot, socket=other.socket)


def test_every_rank_and_resume_give_the_same(attach, files, tmp_path):
    dataset = texts_of(tmp_path, TEXTS * 20).shuffle(5).map(
        penstock.tokenize(files / "like_gpt2.json", 300)).batch(8).repeat(2)
    whole = [(batch.ids.tolist(), batch["text"].tolist())
             for batch in attach(dataset, job="whole")]
    first = attach(dataset, job="first")
    begin = [(batch.ids.tolist(), batch["text"].tolist()) for _, batch in zip(range(9), first)]
    assert begin == whole[:9]
    rest = attach(dataset, job="rest", state=first.state_dict())
    assert begin + [(batch.ids.tolist(), batch["text"].tolist()) for batch in rest] == whole


def test_batches_of_like_length(attach, files, tmp_path):
    """By the number of tokens, which only `map` makes."""
    file = files / "like_gpt2.json"
    wanted = [tokenizers.Tokenizer.from_file(str(file)).encode(text).ids for text in TEXTS]
    lengths = sorted(map(len, wanted))
    bound = lengths[len(lengths) // 2]
    reader = attach(texts_of(tmp_path).map(penstock.tokenize(file, 300)).shuffle(3).batch(
        2, buckets=penstock.buckets("text.length", boundaries=[bound])))
    rows = {}
    for batch in reader:
        assert batch["text"].shape[1] == (bound, lengths[-1])[batch.part]
        for row, each, length in zip(batch["id"].tolist(), batch["text"], batch.lengths("text")):
            rows[row] = each[:length].tolist()
    assert [rows[i] for i in range(len(rows))] == wanted


def test_documents_are_tokenized_and_packed(attach, files, tmp_path):
    file = files / "like_gpt2.json"
    wanted = [tokenizers.Tokenizer.from_file(str(file)).encode(text).ids for text in TEXTS]
    room = max(map(len, wanted)) + 8
    reader = attach(texts_of(tmp_path).map(penstock.tokenize(file, 300), penstock.drop("id"))
                    .shuffle(3).batch(2, last="partial", pack=penstock.pack(
                        room, with_=["records", "seq_lens"])))
    found = {}
    for batch in reader:
        for row, records, lengths in zip(batch["text"], batch["records"], batch["seq_lens"]):
            begin = 0
            for record, length in zip(records.tolist(), lengths.tolist()):
                if length:
                    found[record] = row[begin:begin + length].tolist()
                begin += length
    assert [found.get(i, []) for i in range(len(wanted))] == wanted


def test_what_is_wrong_with_a_text_is_an_error_of_its_sample(attach, failure, files, tmp_path):
    file = files / "like_bert.json"
    long = texts_of(tmp_path).map(penstock.tokenize(file, 20)).batch(1)
    text = failure(long, job="long")
    assert re.search(r"sample 2.*tokenize .*like_bert.json: the text has \d+ tokens, and "
                     "max_length is 20: give more, or `longer: cut`", text), text
    rest = attach(long.on_error("skip"), job="skips")
    assert 0 < sum(batch.valid_rows for batch in rest) < len(TEXTS)
    rows = np.zeros((3, 8), np.uint8)
    rows[:, :3] = list(b"abc")
    rows[1, 2] = 0xff
    binary = Dataset.tensors({"text": rows, "id": np.arange(3)}).map(
        penstock.tokenize(file, 20)).batch(1)
    text = failure(binary, job="binary")
    assert "sample 1" in text and "feature 'text': not UTF-8 at byte 2" in text
    assert [i for batch in attach(binary.on_error("skip"), job="rest")
            for i in batch["id"].tolist()] == [0, 2]


def test_what_is_wrong_with_the_step_is_told(failure, files, tmp_path):
    file = files / "like_bert.json"
    data = texts_of(tmp_path, text2=TEXTS)
    for values, told in (
            ({"file": tmp_path / "gone.json"}, "gone.json: there is no such file"),
            ({"file": tmp_path / "texts.jsonl"}, "it is no tokenizer.json that tokenizers"),
            ({"max_length": 2}, "max_length: 2, and 2 tokens are special ones: give more"),
            ({"feature": "id"}, "wants text, uint8 [bytes], found id int64 []"),
            ({"feature": ["text", "text"]}, "'text' is in it twice"),
            ({"feature": ["text", "text2", "id"]}, "wanted a text, or a pair of two, found 3"),
            ({"to": "id"}, "two features are then named 'id'"),
            ({"type_ids": "text"}, "two features are then named 'text'")):
        step = penstock.tokenize(**{"file": file, "max_length": 9, **values})
        assert told in failure(data.map(step).batch(1), job=f"wrong-{len(told)}")
    tokenizer = json.loads(file.read_text())
    (tmp_path / "empty.json").write_text("")
    assert "it is no tokenizer.json" in failure(
        data.map(penstock.tokenize(tmp_path / "empty.json", 9)).batch(1), job="empty")
    tokenizer = json.loads((files / "like_gpt2.json").read_text())
    tokenizer["model"]["dropout"] = 0.5
    (tmp_path / "random.json").write_text(json.dumps(tokenizer))
    assert "leaves out merges at random (dropout: 0.5)" in failure(
        data.map(penstock.tokenize(tmp_path / "random.json", 9)).batch(1), job="random")


def test_a_python_without_tokenizers_is_told(tmp_path, files):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_PYTHON", "/usr/bin/python3")
        probe = subprocess.run(["/usr/bin/python3", "-c", "import tokenizers"],
                               stderr=subprocess.DEVNULL)
        if probe.returncode == 0:
            pytest.skip("the system's Python has tokenizers")
        with penstock.broker(workers=1) as broker, pytest.raises(
                penstock.InvalidArgument, match="pip install tokenizers into the Python"):
            penstock.attach(texts_of(tmp_path).map(penstock.tokenize(
                files / "like_bert.json", 9)).batch(1), socket=broker.socket)


def test_a_changed_file_is_read_again(attach, files, tmp_path):
    file = tmp_path / "a.json"
    dataset = texts_of(tmp_path).map(penstock.tokenize(file, 300)).batch(4)
    for name in KINDS:
        theirs = tokenizers.Tokenizer.from_file(str(files / f"{name}.json"))
        theirs.save(str(file))
        wanted = [theirs.encode(text).ids for text in TEXTS]
        assert rows_of(attach(dataset, job=name), "text") == wanted


def test_explain_shows_what_it_costs(files, tmp_path):
    spec = tmp_path / "a.yaml"
    spec.write_text(json.dumps(texts_of(tmp_path, TEXTS * 30).map(
        penstock.tokenize(files / "like_gpt2.json", 300)).batch(8).to_dict()))
    shown = json.loads(subprocess.run(
        [PENSTOCK, "explain", "--json", str(spec)], stdout=subprocess.PIPE, check=True,
        env={**os.environ, "PENSTOCK_PYTHON": sys.executable}).stdout)
    assert "tokenize" in json.dumps(shown)
