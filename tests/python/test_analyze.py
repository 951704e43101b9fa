"""penstock analyze finds what NumPy finds, and specs that refer to its file are
normalized and numbered by it."""

import collections
import json
import os
import subprocess
import sys

import numpy as np
import penstock
import pytest

pytestmark = pytest.mark.usefixtures("in_broker")
PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
ROWS = 5000
WORDS = ["the", "a", "Zürich", "", "rare"]


def analyze(folder, spec, *arguments):
    (folder / "spec.yaml").write_text(json.dumps(spec))
    done = subprocess.run([PENSTOCK, "analyze", "spec.yaml", *arguments], cwd=folder,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return done


def statistics_of(folder, spec, *arguments):
    done = analyze(folder, spec, "--json", *arguments)
    assert done.returncode == 0, done.stderr
    written = json.loads((folder / "stats.json").read_text())
    assert json.loads(done.stdout) == written
    return written


def spec_of(source, steps=()):
    return {"dataset": "d", "source": source, "map": list(steps),
            "shuffle": {"seed": 3}, "batch": {"size": 7, "last": "drop"}, "epochs": 4}


@pytest.fixture
def arrays(tmp_path):
    rng = np.random.default_rng(1)
    x = rng.normal([1e6, 0, -5], [1, 3, 0.1], (ROWS, 3)).astype(np.float32)
    x[7, 1] = np.nan
    picture = rng.integers(0, 200, (ROWS, 4, 5, 3), dtype=np.uint8)
    label = rng.integers(0, 4, ROWS)
    for name, array in (("x", x), ("picture", picture), ("label", label)):
        np.save(tmp_path / f"{name}.npy", array)
    return {"x": x, "picture": picture, "label": label}


SOURCE = {"npy": {"features": {name: f"{name}.npy" for name in
                               ("x", "picture", "label")}}}


def test_numbers_as_numpy(tmp_path, arrays):
    found = statistics_of(tmp_path, spec_of(SOURCE))
    assert found["rows"] == ROWS and found["broken"]["count"] == 0
    x = arrays["x"].astype(float)
    of = found["features"]["x"]
    assert of["nan"] == 1 and of["values"] == ROWS * 3
    np.testing.assert_allclose(of["mean"], np.nanmean(x, 0), rtol=1e-9)
    np.testing.assert_allclose(of["std"], np.nanstd(x, 0), rtol=1e-6)
    assert of["min"] == np.nanmin(x, 0).tolist()
    assert of["max"] == np.nanmax(x, 0).tolist()
    of = found["features"]["picture"]
    flat = arrays["picture"].reshape(-1, 3)
    np.testing.assert_allclose(of["mean"], flat.mean(0), rtol=1e-12)
    np.testing.assert_allclose(of["std"], flat.std(0), rtol=1e-9)
    assert of["quantiles"]["0.5"] == np.quantile(flat, 0.5, method="inverted_cdf")
    assert sum(of["histogram"]["counts"]) == flat.size
    of = found["features"]["label"]
    counts = collections.Counter(arrays["label"].tolist())
    assert dict(map(tuple, of["vocabulary"])) == counts
    assert [count for _, count in of["vocabulary"]] == sorted(counts.values())[::-1]


def test_the_result_depends_on_no_number_of_threads(tmp_path, arrays):
    first = statistics_of(tmp_path, spec_of(SOURCE))
    assert statistics_of(tmp_path, spec_of(SOURCE), "--workers", "1") == first
    one = subprocess.run(["taskset", "-c", "0", PENSTOCK, "analyze", "spec.yaml",
                          "--json"], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    if one.returncode == 0:
        assert json.loads(one.stdout) == first


def test_a_spec_is_analyzed_before_its_file_is_there(attach, tmp_path, arrays):
    spec = spec_of(SOURCE, [
        {"normalize": {"feature": "x", "from": "stats.json"}},
        {"clip": {"feature": "x", "min": -3, "max": 3}},
        {"normalize": {"feature": "picture", "from": "stats.json", "layout": "chw"}},
        {"lookup": {"feature": "label", "vocabulary": {"from": "stats.json"}}}])
    found = statistics_of(tmp_path, spec)
    # Again, with the file there: as the steps find the features.
    assert statistics_of(tmp_path, spec) == found
    dataset = penstock.Dataset.npy({name: tmp_path / f"{name}.npy"
                                    for name in arrays}).map(
        penstock.normalize(feature="x", from_=tmp_path / "stats.json"),
        penstock.normalize(feature="picture", from_=tmp_path / "stats.json",
                           layout="chw"),
        penstock.lookup(penstock.vocabulary(tmp_path / "stats.json", max_size=2),
                        feature="label")).batch(ROWS)
    batch = attach(dataset).next()
    x = arrays["x"].astype(float)
    np.testing.assert_allclose(
        batch["x"], (x - np.nanmean(x, 0)) / np.nanstd(x, 0), rtol=1e-4, atol=1e-4)
    picture = arrays["picture"].astype(float)
    normal = (picture - picture.mean((0, 1, 2))) / picture.std((0, 1, 2))
    np.testing.assert_allclose(batch["picture"], normal.transpose(0, 3, 1, 2),
                               rtol=1e-5, atol=1e-5)
    order = [value for value, _ in found["features"]["label"]["vocabulary"]]
    wanted = [1 + order.index(value) if order.index(value) < 2 else 0
              for value in arrays["label"].tolist()]
    assert batch["label"].tolist() == wanted


TEXTS = ["The cat sat on the mat.", "A cat!", "", "Dog; dog\tcat", "b a b", "the ΣΑ"] * 3


@pytest.mark.parametrize("ngrams", [1, 2])
def test_words_are_counted_as_keras_adapts_to_them(attach, tmp_path, ngrams):
    path = tmp_path / "texts.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    counts, documents = collections.Counter(), collections.Counter()
    for text in TEXTS:
        words = "".join(c for c in text if c not in ".!;").replace("T", "t").replace(
            "A ", "a ").replace("D", "d").split()
        words += [" ".join(pair) for pair in zip(words, words[1:])] * (ngrams - 1)
        counts.update(words)
        documents.update(set(words))
    source = penstock.Dataset.json_lines(path, {"text": {"max_bytes": 80}})

    def vectorized(output, **more):
        return source.map(penstock.vectorize_text(
            penstock.vocabulary(tmp_path / "stats.json", **more), output=output,
            ngrams=ngrams)).batch(len(TEXTS))

    found = statistics_of(tmp_path, vectorized("tf_idf").to_dict())["features"]["text"]
    assert dict(map(tuple, found["vocabulary"])) == counts
    assert found["documents"] == [documents[word] for word, _ in found["vocabulary"]]
    assert found["texts"] == len(TEXTS)
    kept = [word for word, count in found["vocabulary"]][:4]
    hot = attach(vectorized("count", max_size=4), job="count").next()["text"]
    weighed = attach(vectorized("tf_idf", max_size=4), job="tf_idf").next()["text"]
    assert hot.shape == (len(TEXTS), 5)
    weights = np.log(1 + len(TEXTS) / (1 + np.array([documents[word] for word in kept])))
    np.testing.assert_allclose(
        weighed, hot * np.concatenate([[weights.mean()], weights]), rtol=1e-6)
    keras = pytest.importorskip("keras", reason="no Keras")
    pytest.importorskip("tensorflow", reason="no TensorFlow")
    theirs = keras.layers.TextVectorization(output_mode="tf_idf",
                                            ngrams=None if ngrams == 1 else ngrams)
    theirs.adapt(np.array(TEXTS, object))
    ours = attach(vectorized("tf_idf"), job="all").next()["text"]
    names = ["[UNK]", *(word for word, _ in found["vocabulary"])]
    of_theirs = np.asarray(theirs(np.array(TEXTS, object)[:, None]))
    order = [names.index(word) for word in theirs.get_vocabulary()]
    np.testing.assert_allclose(ours[:, order], of_theirs, rtol=1e-6)


def test_words_that_were_not_counted_are_told(attach, tmp_path):
    stats = {"penstock_statistics": 1, "features": {"text": {
        "texts": 2, "vocabulary": [["a", 2], ["b", 1]]}}}
    dataset = penstock.Dataset.tensors({"text": np.full((2, 3), 97, np.uint8)}).map(
        penstock.vectorize_text(penstock.vocabulary(tmp_path / "s.json"),
                                output="tf_idf")).batch(1)
    of = stats["features"]["text"]
    for documents in (None, [1], [1, -1], [1, "a"], [1, 0.5], {}, [[], []]):
        of["documents"] = documents
        (tmp_path / "s.json").write_text(json.dumps(stats))
        with pytest.raises(penstock.InvalidArgument, match="does not say in how many texts"):
            attach(dataset)


def test_what_a_file_lacks_is_told(attach, tmp_path, arrays):
    statistics_of(tmp_path, spec_of(SOURCE))
    stats = tmp_path / "stats.json"
    files = {name: tmp_path / f"{name}.npy" for name in arrays}
    dataset = penstock.Dataset.npy(files)
    for operation, message in (
            (penstock.normalize(feature="y", from_=stats),
             "has no feature 'y', but .*penstock analyze"),
            (penstock.lookup(penstock.vocabulary(stats, "x"), feature="label"),
             "no vocabulary of 'x', which is neither text nor integers"),
            (penstock.lookup(penstock.vocabulary(stats, min_count=9999),
                             feature="label"), "no token of 'label' is there 9999")):
        renamed = dataset.map(penstock.rename({"x": "y"}), operation).batch(1)
        with pytest.raises(penstock.InvalidArgument, match=message):
            attach(renamed)
    (tmp_path / "other.json").write_text('{"penstock_statistics": 2, "features": {}}')
    for name, error in (("other.json", penstock.InvalidArgument),
                        ("none.json", penstock.NotFound)):
        with pytest.raises(error, match=f"{name}.*`penstock analyze SPEC.yaml --out FILE`"):
            attach(dataset.map(penstock.normalize(feature="x", from_=tmp_path / name))
                   .batch(1))
    (tmp_path / "none.json").write_text(json.dumps({
        "penstock_statistics": 1, "features": {"label": {"vocabulary": []}}}))
    with pytest.raises(penstock.InvalidArgument,
                       match="none.json: the vocabulary of 'label' is empty"):
        attach(dataset.map(penstock.lookup(penstock.vocabulary(tmp_path / "none.json"),
                                           feature="label")).batch(1))
    # Statistics of a training set, for a validation set: a warning.
    np.save(tmp_path / "x.npy", arrays["x"][:10])
    other = (penstock.Dataset.npy({"x": tmp_path / "x.npy"})
             .map(penstock.normalize(feature="x", from_=stats)).batch(1))
    with pytest.warns(UserWarning, match="statistics of other data"):
        attach(other, job="other")
    # `check` says it once: not in penstockd's log as well.
    (tmp_path / "spec.yaml").write_text(other.to_yaml())
    done = subprocess.run([PENSTOCK, "check", tmp_path / "spec.yaml"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.stderr.count("statistics of other data") == 1, done.stderr
    assert done.stderr.startswith("penstock: warning: dataset 'npy': ")


def test_constants_and_values_that_are_no_numbers_are_told(attach, tmp_path):
    x = np.arange(ROWS, dtype=np.float32).repeat(2).reshape(-1, 2)
    x[:, 1] = 4
    y = np.arange(ROWS, dtype=np.float32)
    y[3:6] = np.nan
    y[6:8] = [np.inf, -np.inf]
    for name, array in (("x", x), ("y", y), ("one", np.full(ROWS, 7))):
        np.save(tmp_path / f"{name}.npy", array)
    names = ["x", "y", "one"]
    spec = spec_of({"npy": {"features": {name: f"{name}.npy" for name in names}}})
    done = analyze(tmp_path, spec)
    assert done.returncode == 0
    assert done.stderr == ("penstock: warning: all values are the same, so that the std is 0, "
                           "of 1 of 2 channels of 'x', 'one'\n")
    table = [line.split() for line in done.stdout.splitlines()[:4]]
    assert table[0][6:9] == ["NaN", "infinite", "distinct"]
    assert table[2][0] == "y" and table[2][7:9] == ["3", "2"]
    # Without such values there are no such columns.
    plain = analyze(tmp_path, spec_of({"range": 9}))
    assert "NaN" not in plain.stdout and "infinite" not in plain.stdout
    assert plain.stderr == ""

    analyze(tmp_path, spec)
    stats = tmp_path / "stats.json"
    dataset = penstock.Dataset.npy({name: tmp_path / f"{name}.npy" for name in names}).map(
        *(penstock.normalize(feature=name, from_=stats) for name in ("x", "y")))
    (tmp_path / "spec.yaml").write_text(dataset.batch(2).to_yaml())
    done = subprocess.run([PENSTOCK, "check", "--no-row", tmp_path / "spec.yaml"],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 0
    for words in ("stats.json: the std of 'x' is 0 in 1 of 2 channels, because all values "
                  "were the same: normalize divides by 1e-07",
                  "stats.json: 'y' had values that are NaN (3) or infinite (2), which mean "
                  "and std leave out: normalize leaves them as they are"):
        assert done.stderr.count(words) == 1, done.stderr
    with pytest.warns(UserWarning, match="the std of 'x' is 0"):
        batch = attach(dataset.batch(5)).next()
    assert (batch["x"][:, 1] == 0).all() and np.isnan(batch["y"][3:5]).all()


def test_words_and_broken_records(attach, tmp_path):
    rows = [{"word": WORDS[i * i % 7 % 5], "n": i} for i in range(ROWS)]
    rows[0]["word"] = "rare"
    lines = [json.dumps(row) for row in rows]
    lines[3] = "{no JSON"
    lines[5] = json.dumps({"n": 1})
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    source = {"json_lines": {"files": "rows.jsonl", "fields": {
        "word": {"max_bytes": 16}, "n": {"dtype": "int64"}}}}
    done = analyze(tmp_path, spec_of(source), "--plot", "stats.png")
    assert done.returncode == 0
    assert done.stderr.startswith("penstock: left out of the statistics: 2 records that "
                                  "could not be read or made:\n")
    assert done.stderr.count("rows.jsonl, line 4: not JSON") == 1  # and not by penstockd
    assert (tmp_path / "stats.png").read_bytes().startswith(b"\x89PNG")
    assert "word" in done.stdout and "█" in done.stdout
    found = json.loads((tmp_path / "stats.json").read_text())
    assert found["broken"]["count"] == 2 and len(found["broken"]["first"]) == 2
    left = [row["word"] for i, row in enumerate(rows) if i not in (3, 5)]
    counts = collections.Counter(left)
    of = found["features"]["word"]
    assert dict(map(tuple, of["vocabulary"])) == counts
    assert of["bytes"]["max"] == len("Zürich".encode())
    assert "word_bytes" not in found["features"]


def test_what_is_behind_the_end_of_a_list_is_not_counted(tmp_path):
    rows = [[float(j) for j in range(i % 5)] for i in range(300)]
    (tmp_path / "a.jsonl").write_text("".join(
        json.dumps({"x": row, "t": list(map(int, row)), "b": [[v, 1] for v in row]}) + "\n"
        for row in rows))
    numbers = {"dtype": "float32", "max_length": 9}
    found = statistics_of(tmp_path, spec_of({"json_lines": {"files": "a.jsonl", "fields": {
        "x": numbers, "t": {**numbers, "dtype": "int32"},
        "b": {**numbers, "shape": [2]}}}}))["features"]
    assert sorted(found) == ["b", "t", "x"]
    items = [value for row in rows for value in row]
    assert found["x"]["values"] == len(items) and found["x"]["shape"] == [9]
    assert found["x"]["mean"] == pytest.approx([np.mean(items)])
    assert found["b"]["mean"] == pytest.approx([np.mean(items), 1])
    assert dict(found["t"]["vocabulary"]) == collections.Counter(map(int, items))
    assert found["x"]["length"]["mean"] == pytest.approx(np.mean(list(map(len, rows))))
    assert (found["x"]["length"]["min"], found["x"]["length"]["max"]) == (0, 4)


def test_a_file_of_others_is_not_replaced(tmp_path):
    for option, words in (("--out", "is no file of `penstock analyze`"),
                          ("--plot", "is no PNG picture")):
        (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
        done = analyze(tmp_path, spec_of({"range": 4}), option, "rows.csv")
        assert done.returncode == 1 and words in done.stderr
        assert (tmp_path / "rows.csv").read_text() == "a,b\n1,2\n"
        (tmp_path / "rows.csv").write_text("")
        for _ in range(2):  # an empty file, and one of its own
            assert analyze(tmp_path, spec_of({"range": 4}), option,
                           "rows.csv").returncode == 0


def test_an_error_has_the_numbers_of_the_steps_of_the_spec(tmp_path):
    done = analyze(tmp_path, spec_of({"range": 4}, [
        {"cast": {"feature": "value", "dtype": "float32"}},
        {"normalize": {"feature": "value", "from": "none.json"}},
        {"rename": {"features": {"value": "x"}}},
        {"cast": {"feature": "y", "dtype": "float32"}}]))
    assert done.stderr.startswith("penstock: spec.yaml: map[3].cast: no feature 'y'")


def test_a_copy_of_values_to_be_normalized_is_of_what_they_were(tmp_path):
    stats = statistics_of(tmp_path, spec_of({"range": 4}, [
        {"normalize": {"feature": "value", "from": "none.json"}},
        {"copy": {"features": {"value": ["x"]}}},
        {"clip": {"feature": "x", "max": 1}}]))
    assert stats["features"]["x"]["mean"] == stats["features"]["value"]["mean"] == [1.5]


def test_bad_arguments(tmp_path):
    for spec, message, *arguments in (
            (spec_of({"range": 0}), "range"),
            (spec_of({"stream": {"features": {"x": {"dtype": "int8", "shape": []}}}}),
             "stream"),
            (spec_of({"tensors": {"x": [1, 2]}}), "tensors"),
            (spec_of({"range": 4}), "cannot write", "--out", "missing/stats.json"),
            (spec_of({"range": 4}, [{"normalise": {}}]), "normalise")):
        if "stream" in spec["source"]:
            spec = {key: spec[key] for key in ("dataset", "source", "batch")}
        done = analyze(tmp_path, spec, *arguments)
        assert done.returncode == 1, done
        assert message in done.stderr
    assert analyze(tmp_path, spec_of({"range": 4}), "--tokens-max", "0").returncode == 2
