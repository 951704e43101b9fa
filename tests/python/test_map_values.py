"""Promise: operations on values give what NumPy's functions give, and, where these are
installed, those of PyTorch, TensorFlow and Keras that OPERATIONS.md and their docstrings
name."""

import itertools
import json

import numpy as np
import penstock
import pytest

ROWS = 64
WORDS = ["", "a", "Paris", "Rome", "x" * 40, "Zürich", "rome", "Paris "]
VOCABULARY = ["Rome", "Paris", "Zürich"]


@pytest.fixture
def numbers():
    rng = np.random.default_rng(5)
    x = rng.normal(0, 3, (ROWS, 4)).astype(np.float32)
    x[0] = [0.7, -0.0, 3, -3]
    return {"x": x, "n": rng.integers(-50, 50, (ROWS, 3)),
            "label": rng.integers(0, 5, ROWS)}


def one_batch(attach, dataset, **options):
    """The rows of the data, in one batch."""
    return {name: np.array(values) for name, values
            in attach(dataset.batch(ROWS), **options).next().items()}


def words(tmp_path):
    path = tmp_path / "words.jsonl"
    path.write_text("".join(json.dumps({"word": WORDS[i % len(WORDS)]}) + "\n"
                            for i in range(ROWS)))
    return penstock.Dataset.json_lines(path, {"word": {"max_bytes": 48}})


def test_numbers_as_numpy(attach, numbers):
    got = one_batch(attach, penstock.Dataset.tensors(numbers).map(
        penstock.rename({"x": "y"}),
        penstock.rescale(0.5, 2, feature="y"),
        penstock.clip(-1, 3, feature="y"),
        penstock.bucketize([-10, 0, 10], feature="n"),
        penstock.one_hot(5),
        penstock.label_smoothing(0.2),
        penstock.select(["label", "y", "n"])))
    assert list(got) == ["label", "y", "n"]
    np.testing.assert_array_equal(
        got["y"], np.clip((numbers["x"].astype(float) * 0.5 + 2).astype(np.float32),
                          -1, 3))
    np.testing.assert_array_equal(got["n"], np.digitize(numbers["n"], [-10, 0, 10]))
    np.testing.assert_array_equal(
        got["label"], (np.eye(5)[numbers["label"]] * 0.8 + 0.2 / 5).astype(np.float32))


def test_shapes_as_numpy(attach, numbers):
    got = one_batch(attach, penstock.Dataset.tensors(numbers).map(
        penstock.cast("float32", feature="n"),
        penstock.concatenate(["x", "n"], to="x"),
        penstock.pad_sequence(9, -1, pad="start", feature="x"),
        penstock.reshape([3, -1], feature="x"),
        penstock.drop("label")))
    both = np.concatenate([numbers["x"], numbers["n"]], -1)
    np.testing.assert_array_equal(
        got["x"], np.pad(both, ((0, 0), (2, 0)), constant_values=-1).reshape(-1, 3, 3))


def test_a_vocabulary_file_is_read_and_read_again(attach, tmp_path):
    (tmp_path / "vocabulary.txt").write_text("\n".join(VOCABULARY) + "\n")
    dataset = words(tmp_path).map(
        penstock.lookup(tmp_path / "vocabulary.txt", feature="word"))
    wanted = [1 + VOCABULARY.index(word) if word in VOCABULARY else 0 for word in WORDS]
    got = one_batch(attach, dataset)
    assert list(got) == ["word"]
    assert got["word"].tolist() == wanted * (ROWS // len(WORDS))
    (tmp_path / "vocabulary.txt").write_text("a\nParis")
    assert one_batch(attach, dataset, job="again")["word"][:8].tolist() == [
        0, 1, 2, 0, 0, 0, 0, 0]


def test_a_word_without_a_number_is_an_error_of_its_sample(attach, tmp_path):
    dataset = words(tmp_path).map(
        penstock.lookup(VOCABULARY, oov_buckets=0, feature="word"))
    # One of several: whichever a worker comes to first.
    with pytest.raises(penstock.DataLoss,
                       match="words.jsonl, line .* lookup: '.*' is not in the vocab"):
        one_batch(attach, dataset)
    got = one_batch(attach, dataset.on_error("skip"), job="skip")
    assert len(got["word"]) == ROWS // len(WORDS) * 3


def test_json_in_a_text(attach, tmp_path):
    path = tmp_path / "lines.txt"
    path.write_text("".join(json.dumps({"id": i, "box": [i, -i]}) + "\n"
                            for i in range(ROWS)))
    got = one_batch(attach, penstock.Dataset.text_lines(path, 64).map(
        penstock.parse_json({"id": penstock.TensorSpec((), "int32"),
                             "box": {"dtype": "float32", "shape": [2]}})))
    assert list(got) == ["id", "box"]
    assert got["id"].tolist() == list(range(ROWS))
    assert got["box"][:, 1].tolist() == [-i for i in range(ROWS)]


def test_keras(attach, numbers, tmp_path):
    keras = pytest.importorskip("keras", reason="no Keras")
    layers = keras.layers
    boundaries = [-3.0, 0.0, 0.7, 3.0]
    mean, variance = numbers["x"].mean(0), numbers["x"].var(0)

    def got_of(operation, feature="x", source=None):
        got_of.jobs += 1
        dataset = source or penstock.Dataset.tensors(numbers)
        return one_batch(attach, dataset.map(operation), job=f"keras-{got_of.jobs}")[
            feature]
    got_of.jobs = 0

    def same(got, layer, values, **tolerance):
        wanted = np.asarray(layer(values))
        np.testing.assert_allclose(got, wanted, **{"rtol": 0, "atol": 0, **tolerance})

    same(got_of(penstock.bucketize(boundaries, feature="x")),
         layers.Discretization(boundaries), numbers["x"])
    same(got_of(penstock.rescale(1 / 127.5, -1, feature="x")),
         layers.Rescaling(1 / 127.5, -1), numbers["x"], rtol=1e-6)
    same(got_of(penstock.normalize(mean, np.sqrt(variance), feature="x")),
         layers.Normalization(mean=mean, variance=variance), numbers["x"],
         rtol=1e-5, atol=1e-6)
    same(got_of(penstock.one_hot(5, feature="label"), "label"),
         layers.CategoryEncoding(5, output_mode="one_hot"), numbers["label"])
    same(got_of(penstock.hash(7, feature="n"), "n"), layers.Hashing(7), numbers["n"])
    for oov, mask in ((1, None), (3, None), (2, 0)):
        same(got_of(penstock.lookup([7, 42, -5], oov, mask, feature="n"), "n"),
             layers.IntegerLookup(vocabulary=[7, 42, -5], num_oov_indices=oov,
                                  mask_token=mask), numbers["n"])
    text = np.array([WORDS[i % len(WORDS)] for i in range(ROWS)])
    for oov, mask in ((1, None), (3, None), (2, "")):
        same(got_of(penstock.lookup(VOCABULARY, oov, mask, feature="word"), "word",
                    words(tmp_path)),
             layers.StringLookup(vocabulary=VOCABULARY, num_oov_indices=oov,
                                 mask_token=mask), text)
    same(got_of(penstock.hash(11, "", feature="word"), "word", words(tmp_path)),
         layers.Hashing(11, mask_value=""), text)


# ---- each in a job of its own


@pytest.fixture
def after(attach, tmp_path):
    """The feature of a dataset, or of arrays, after these operations."""
    jobs = itertools.count()

    def run(source, feature, *operations):
        if not isinstance(source, penstock.Dataset):
            paths = {name: tmp_path / f"{name}.npy" for name in source}
            for name, array in source.items():  # files, since a spec has no NaN
                np.save(paths[name], array)
            source = penstock.Dataset.npy(paths)
        return one_batch(attach, source.map(*operations), job=f"after-{next(jobs)}")[feature]

    return run


TEXTS = [WORDS[i % len(WORDS)].encode() for i in range(ROWS)]


def values():
    """Of all sizes, and none."""
    x = np.random.default_rng(6).normal(0, 3, (ROWS, 5)).astype(np.float32)
    x[0] = [np.nan, np.inf, -np.inf, -0.0, 0.1]
    return x


@pytest.mark.parametrize("smoothing", [0, 0.1, 0.3, 1])
def test_label_smoothing_as_in_the_loss_of_pytorch_and_keras(after, numbers, smoothing):
    torch = pytest.importorskip("torch", reason="no PyTorch")
    logits = torch.tensor(np.random.default_rng(7).normal(0, 2, (ROWS, 5)),
                          requires_grad=True)
    # The gradient is softmax - target.
    loss = torch.nn.CrossEntropyLoss(label_smoothing=smoothing, reduction="sum")
    theirs = loss(logits, torch.tensor(numbers["label"]))
    theirs.backward()
    targets = (torch.softmax(logits.detach(), 1) - logits.grad).numpy()

    for dtype, tolerance in (("float64", 1e-14), ("float32", 2 ** -24), ("float16", 2 ** -11)):
        ours = after(numbers, "label", penstock.one_hot(5, dtype),
                     penstock.label_smoothing(smoothing))
        assert ours.dtype == dtype
        np.testing.assert_allclose(ours, targets, rtol=0, atol=tolerance)
    ours = after(numbers, "label", penstock.one_hot(5), penstock.label_smoothing(smoothing))
    plain = torch.nn.CrossEntropyLoss(reduction="sum")(logits, torch.tensor(ours).double())
    assert plain.item() == pytest.approx(theirs.item(), rel=1e-6)

    keras = pytest.importorskip("keras", reason="no Keras")
    one_hot = np.eye(5, dtype=np.float32)[numbers["label"]]
    logits = logits.detach().numpy().astype(np.float32)
    smoothed, given = (
        keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=amount)(
            labels, logits) for amount, labels in ((smoothing, one_hot), (0, ours)))
    assert float(smoothed) == pytest.approx(float(given), rel=1e-6)


def test_numbers_as_pytorch(after, numbers):
    torch = pytest.importorskip("torch", reason="no PyTorch")
    x, n = values(), numbers["n"]
    for low, high in ((-1, 0.1), (None, 2), (0.3, None)):
        np.testing.assert_array_equal(
            after({"x": x}, "x", penstock.clip(low, high, feature="x")),
            torch.clamp(torch.tensor(x), low, high).numpy())
    np.testing.assert_array_equal(after(numbers, "n", penstock.clip(-7, 20, feature="n")),
                                  torch.clamp(torch.tensor(n), -7, 20).numpy())
    np.testing.assert_array_equal(
        after({"n": n + 50}, "n", penstock.one_hot(101, "int64", feature="n")),
        torch.nn.functional.one_hot(torch.tensor(n + 50), 101).numpy())
    np.testing.assert_array_equal(
        after({"n": n, "label": numbers["label"]}, "all",
              penstock.concatenate(["n", "label"], to="all")),
        torch.cat([torch.tensor(n), torch.tensor(numbers["label"])[:, None]], -1).numpy())


@pytest.mark.parametrize("pad,side", [("end", "right"), ("start", "left")])
def test_pad_sequence_as_pytorch(after, tmp_path, pad, side):
    torch = pytest.importorskip("torch", reason="no PyTorch")
    tensors = [torch.frombuffer(bytearray(text), dtype=torch.uint8) if text
               else torch.zeros(0, dtype=torch.uint8) for text in TEXTS]
    theirs = torch.nn.utils.rnn.pad_sequence(tensors, True, 7, side).numpy()
    longest = theirs.shape[1]
    padding = penstock.pad_sequence(longest, 7, pad, feature="word")
    np.testing.assert_array_equal(after(words(tmp_path), "word", padding), theirs)
    assert after(words(tmp_path), "word_bytes", padding).tolist() == [
        len(text) for text in TEXTS]


@pytest.mark.parametrize("pad,theirs", [("start", "pre"), ("end", "post")])
@pytest.mark.parametrize("cut,theirs_cut", [("start", "pre"), ("end", "post")])
def test_pad_sequence_as_keras(after, numbers, tmp_path, pad, theirs, cut, theirs_cut):
    keras = pytest.importorskip("keras", reason="no Keras")

    def kerass(sequences, length, dtype, value):
        return keras.utils.pad_sequences(sequences, length, dtype, theirs, theirs_cut, value)

    texts = [list(text) for text in TEXTS]
    for length in (3, 45):
        padding = penstock.pad_sequence(length, 9, pad, cut, feature="word")
        np.testing.assert_array_equal(after(words(tmp_path), "word", padding),
                                      kerass(texts, length, "uint8", 9))
        assert after(words(tmp_path), "word_bytes", padding).tolist() == [
            min(len(text), length) for text in texts]
    rows = numbers["x"].reshape(ROWS, 2, 2)
    for length in (1, 5):
        padding = penstock.pad_sequence(length, -1.5, pad, cut, feature="x")
        np.testing.assert_array_equal(after({"x": rows}, "x", padding),
                                      kerass(rows, length, "float32", -1.5))


def test_numbers_as_tensorflow_and_keras(after, numbers):
    tf = pytest.importorskip("tensorflow", reason="no TensorFlow")
    x, n = values(), numbers["n"]
    np.testing.assert_array_equal(after({"x": x}, "x", penstock.clip(-1, 0.1, feature="x")),
                                  tf.clip_by_value(x, -1, 0.1).numpy())
    # Most are out of range.
    for dtype in ("float32", "int32", "uint8"):
        ours = after(numbers, "n", penstock.one_hot(9, dtype, "zeros", feature="n"))
        assert ours.dtype == dtype
        np.testing.assert_array_equal(ours, tf.one_hot(n, 9, dtype=dtype).numpy())
    keras = pytest.importorskip("keras", reason="no Keras")
    pair = {"x": x, "y": x[:, :2] * 3}
    np.testing.assert_array_equal(
        after(pair, "both", penstock.concatenate(["y", "x"], to="both")),
        np.asarray(keras.layers.Concatenate()([pair["y"], pair["x"]])))
