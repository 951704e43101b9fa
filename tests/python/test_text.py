"""Promise: `vectorize_text` gives the numbers of Keras' TextVectorization, and
`encode_bytes` the tokens of ByT5. Method: values written out, and, where they are
installed, Keras' and transformers' own beside them, on texts that are odd."""

import itertools
import json

import numpy as np
import penstock
import pytest

Dataset = penstock.Dataset
ROOM = 200
TEXTS = ["", "the cat sat on the mat", "The CAT, sat!", "  two\tspaces\n and\r lines\x0b\x0c.",
         "ÀÉ Straße İstanbul ǅ ΣΑΣ", "北京 😀 e\u0301 \u00a0\u2003x\u1680y", "don't-stop_me (now)",
         "[UNK] unk '' \"\"", "a b c d e a b", "...", "x\x00y \x00", "«quoted» ¡hola! — dash…"]
WORDS = ["the", "cat", "sat", "on", "mat", "a", "b", "a b", "b c", "the cat", "àé", "ÀÉ", "é",
         "e", "x", "the cat sat on the mat", "unk", "dont", "stopme", "dontstopme", "\u00a0", "t"]


def texts_of(folder, texts):
    path = folder / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return Dataset.json_lines(path, {"text": {"max_bytes": ROOM}})


@pytest.fixture
def after(attach, tmp_path):
    """All rows of the texts after an operation, and how long they are if they are lists."""
    jobs = itertools.count()

    def run(operation, texts=TEXTS):
        batch = attach(texts_of(tmp_path, texts).map(operation).batch(len(texts)),
                       job=f"after-{next(jobs)}").next()
        lengths = batch.lengths("text") if "text.length" in batch else None
        return np.array(batch["text"]), lengths

    return run


def test_bytes_are_byt5s(after):
    texts = ["", "hi", "né\x00!"]
    tokens, lengths = after(penstock.encode_bytes(offset=3, end=1), texts)
    assert tokens.dtype == np.int32 and tokens.shape == (3, ROOM + 1)
    assert tokens[:, :7].tolist() == [[1, 0, 0, 0, 0, 0, 0], [107, 108, 1, 0, 0, 0, 0],
                                      [113, 198, 172, 3, 36, 1, 0]]
    assert lengths.tolist() == [1, 3, 6] and not tokens[:, 7:].any()
    tokens, lengths = after(penstock.encode_bytes(
        begin=257, end=256, max_length=4, longer="cut", dtype="int64"), texts)
    assert tokens.dtype == np.int64 and lengths.tolist() == [2, 4, 4]
    assert tokens.tolist() == [[257, 256, 0, 0], [257, 104, 105, 256], [257, 110, 195, 256]]


def test_bytes_beside_transformers(after):
    transformers = pytest.importorskip("transformers", reason="no transformers")
    theirs = transformers.ByT5Tokenizer()
    texts = [text for text in TEXTS if "\x00" not in text]  # it has names of its own for some
    for longest in (9, ROOM + 1):
        tokens, lengths = after(penstock.encode_bytes(
            offset=3, end=1, max_length=longest, longer="cut"), texts)
        for row, length, text in zip(tokens, lengths, texts):
            assert row[:length].tolist() == theirs(
                text, truncation=True, max_length=longest)["input_ids"]


def test_words_have_keras_numbers(after):
    vocabulary = ["the", "cat", "sat"]
    tokens, lengths = after(penstock.vectorize_text(vocabulary, 9), TEXTS[:3])
    assert tokens.dtype == np.int64
    assert tokens.tolist() == [[0] * 9, [2, 3, 4, 1, 2, 1, 0, 0, 0], [2, 3, 4] + [0] * 6]
    assert lengths.tolist() == [0, 6, 3]
    # As get_vocabulary() has them.
    again, _ = after(penstock.vectorize_text(["", "[UNK]", *vocabulary], 9), TEXTS[:3])
    assert (again == tokens).all()
    counts, lengths = after(penstock.vectorize_text(vocabulary, output="count"), TEXTS[:3])
    assert counts.dtype == np.float32 and lengths is None
    assert counts.tolist() == [[0, 0, 0, 0], [2, 2, 1, 1], [0, 1, 1, 1]]
    hot, _ = after(penstock.vectorize_text(["[UNK]", *vocabulary], output="multi_hot"),
                   TEXTS[:3])
    assert hot.tolist() == (counts > 0).astype(float).tolist()


def test_weights_of_words(after, tmp_path):
    (tmp_path / "idf.txt").write_text("0.5\n1e1\n2\n")
    weighed, _ = after(penstock.vectorize_text(
        ["the", "cat", "sat"], output="tf_idf", idf=tmp_path / "idf.txt"), TEXTS[:3])
    mean = np.float32(12.5 / 3)
    assert weighed.tolist() == [[0, 0, 0, 0], [2 * mean, 1, 10, 2], [0, 0.5, 10, 2]]


@pytest.mark.parametrize("standardize", ["lower_and_strip_punctuation", "lower",
                                         "strip_punctuation", "none"])
@pytest.mark.parametrize("split", ["whitespace", "character", "none"])
@pytest.mark.parametrize("ngrams", [None, 2, (1, 3)])
def test_beside_keras(after, tmp_path, standardize, split, ngrams):
    keras = pytest.importorskip("keras", reason="no Keras")
    pytest.importorskip("tensorflow", reason="no TensorFlow")
    if split == "none" and ngrams:
        pytest.skip("a text that is not split has no neighbours")
    kind = {"standardize": None if standardize == "none" else standardize,
            "split": None if split == "none" else split, "ngrams": ngrams}
    ours = {"standardize": standardize, "split": split, "ngrams": ngrams}
    texts = np.array(TEXTS, object)[:, None]
    theirs = keras.layers.TextVectorization(
        vocabulary=WORDS, output_mode="int",
        output_sequence_length=None if split == "none" else 60, **kind)
    wanted = np.asarray(theirs(texts)).reshape(len(TEXTS), -1)
    tokens, lengths = after(penstock.vectorize_text(
        WORDS, wanted.shape[1], longer="cut", **ours))
    np.testing.assert_array_equal(tokens, wanted)
    for mode in ("multi_hot", "count", "tf_idf"):
        weights = np.linspace(0.5, 3, len(WORDS)).astype(np.float32)
        more, theirs_more = {}, {}
        if mode == "tf_idf":
            np.savetxt(tmp_path / "idf.txt", weights)
            more, theirs_more = {"idf": tmp_path / "idf.txt"}, {"idf_weights": weights}
        theirs = keras.layers.TextVectorization(
            vocabulary=WORDS, output_mode=mode, **theirs_more, **kind)
        values, _ = after(penstock.vectorize_text(WORDS, output=mode, **more, **ours))
        np.testing.assert_allclose(values, np.asarray(theirs(texts)), rtol=1e-6)


def failure_of(attach, dataset, job):
    with pytest.raises(penstock.Error) as error:
        for _ in attach(dataset.batch(1), job=job):
            pass
    return str(error.value)


def test_what_is_wrong_with_a_text_is_an_error_of_its_sample(attach, tmp_path):
    dataset = texts_of(tmp_path, TEXTS)
    for step, told in (
            (penstock.vectorize_text(WORDS, 3), "a text of 6 words, and max_length is 3"),
            (penstock.encode_bytes(end=1, max_length=9),
             "a text of 23 tokens, and max_length is 9")):
        text = failure_of(attach, dataset.map(step), told[:11])
        assert "sample 1" in text and f"{told}: give more, or `longer: cut`" in text
        reader = attach(dataset.map(step).batch(1).on_error("skip"), job=f"skips {told[:11]}")
        assert 0 < sum(batch.valid_rows for batch in reader) < len(TEXTS)
    rows = np.zeros((3, 4), np.uint8)
    rows[1] = 0xff
    binary = Dataset.tensors({"text": rows})
    text = failure_of(attach, binary.map(
        penstock.vectorize_text(WORDS, 9, split="character")), "binary")
    assert "sample 1" in text and "feature 'text': not UTF-8 at byte 0" in text
    batch = attach(binary.map(penstock.encode_bytes(), ).batch(3), job="bytes").next()
    assert batch["text"][1].tolist() == [255] * 4
