"""Sources json_lines and csv deliver what Python's json and csv read from the same
files."""

import csv
import json

import numpy as np
import penstock
import pytest

RNG = np.random.default_rng(11)
TEXTS = ["", "plain", "with, comma", 'a "quote"', '"', '""', "two\nlines", "dos\r\n",
         "ä ö 😀", " spaces ", "tab\tx", "x" * 40, "\\", "'", ";", "null"]


def rows_of(attach, dataset, **options):
    """All rows of one epoch: by feature, text as str."""
    reader = attach(dataset, **options)
    rows = {}
    for batch in reader:
        for name in batch:
            rows.setdefault(name, []).extend(np.array(batch[name]))
    for name in [name for name in rows if name + "_bytes" in rows]:
        rows[name] = [bytes(text[:size]).decode() for text, size
                      in zip(rows[name], rows.pop(name + "_bytes"))]
    return rows


def documents(count):
    return [{"id": i, "score": float(RNG.normal()), "ok": bool(i % 3),
             "text": TEXTS[i % len(TEXTS)],
             "meta": {"box": RNG.integers(0, 99, (2, 2)).tolist(), "tags": ["a", TEXTS[-i % 7]]}}
            for i in range(count)]


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n\n"])
def test_json_lines(attach, tmp_path, ascii_only, end):
    files, wanted = [], []
    for i, count in enumerate((30, 1, 25)):
        files.append(tmp_path / f"{i}.jsonl")
        some = documents(count)
        text = "\n".join(json.dumps(each, ensure_ascii=ascii_only) for each in some)
        if end == "\r\n":
            text = text.replace("\n", end)
        files[-1].write_bytes((text + end).encode())
        wanted += some
    rows = rows_of(attach, penstock.Dataset.json_lines(files, {
        "id": {"dtype": np.int32}, "score": penstock.TensorSpec((), "float64"),
        "half": {"dtype": "float16", "pointer": "/score"}, "ok": {"dtype": "bool"},
        "text": {"max_bytes": 64}, "tag": {"max_bytes": 32, "pointer": "/meta/tags/1"},
        "box": {"dtype": "uint8", "shape": [2, 2], "pointer": "/meta/box"}}).batch(8))
    assert rows["id"] == [each["id"] for each in wanted]
    assert rows["score"] == [each["score"] for each in wanted]
    assert rows["half"] == [np.float16(each["score"]) for each in wanted]
    assert rows["ok"] == [each["ok"] for each in wanted]
    assert rows["text"] == [each["text"] for each in wanted]
    assert rows["tag"] == [each["meta"]["tags"][1] for each in wanted]
    np.testing.assert_array_equal(rows["box"], [each["meta"]["box"] for each in wanted])


def test_json_lines_without_a_value(attach, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"x": 1, "t": "a"}\n{"x": null}\n\n{"t": null}\n{"x": 2.5}\n{"x":\n')
    fields = {"x": {"dtype": "int64", "default": -1}, "t": {"max_bytes": 4, "default": "?"}}
    dataset = penstock.Dataset.json_lines(path, fields).batch(1)
    rows = rows_of(attach, dataset.on_error("skip"), job="skips")
    assert rows == {"x": [1, -1, -1], "t": ["a", "?", "?"]}
    # One that is wrong: of several, the first that a worker comes to is told.
    path.write_text('{"x": 1}\n{"x": null}\n{"x": 3}\n')
    with pytest.raises(penstock.DataLoss,
                       match=r"a\.jsonl, line 2: field 'x' is null; give it.*on_error"):
        rows_of(attach, penstock.Dataset.json_lines(
            path, {"x": {"dtype": "int64"}}).batch(1), job="fails")
    # The parser ends what it says with a full stop.
    path.write_text('{"x": "open}\n')
    with pytest.raises(penstock.DataLoss, match="never closed; set `on_error`"):
        rows_of(attach, penstock.Dataset.json_lines(
            path, {"x": {"dtype": "int64"}}).batch(1), job="stop")


def test_the_first_line_is_empty(attach, tmp_path):
    path = tmp_path / "a"
    path.write_text('\n{"x": 1}\n\n{"x": 2}\n')
    rows = rows_of(attach, penstock.Dataset.json_lines(
        path, {"x": {"dtype": "int64"}}).batch(1).on_error("skip"), job="json")
    assert rows["x"] == [1, 2]
    reader = attach(penstock.Dataset.text_lines(path, 16).batch(4), job="text")
    assert reader.next()["bytes"].tolist() == [0, 8, 0, 8]


def test_jobs_that_select_by_other_columns_of_one_file(attach, tmp_path):
    """The second finds the file open, without its column."""
    (tmp_path / "a").write_text("".join(json.dumps({"x": i, "y": -i}) + "\n" for i in range(9)))
    dataset = penstock.Dataset.json_lines(tmp_path / "a", {
        "x": {"dtype": "int64"}, "y": {"dtype": "int64"}})
    for column, least, wanted in (("x", 4, [4, 5, 6, 7, 8]), ("y", 0, [0])):
        reader = attach(dataset.filter(column, min=least).batch(9), job=column)
        assert reader.next()["x"].tolist() == wanted


@pytest.mark.parametrize("dialect", [
    {}, {"lineterminator": "\n"}, {"delimiter": ";"}, {"delimiter": "\t"},
    {"quoting": csv.QUOTE_ALL}, {"quoting": csv.QUOTE_NONNUMERIC}])
def test_csv(attach, tmp_path, dialect):
    files, wanted = [], []
    for i, count in enumerate((40, 1, 17)):
        files.append(tmp_path / f"{i}.csv")
        names = ["id", "text", "score", "other"][::-1 if i % 2 else 1]
        rows = [{"id": n, "text": TEXTS[n % len(TEXTS)], "score": float(RNG.normal()),
                 "other": TEXTS[-n % len(TEXTS)]} for n in range(count)]
        with open(files[-1], "w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, names, **dialect)
            writer.writeheader()
            writer.writerows(rows)
        with open(files[-1], newline="", encoding="utf-8") as file:
            wanted += csv.DictReader(file, delimiter=dialect.get("delimiter", ","))
    rows = rows_of(attach, penstock.Dataset.csv(
        files, {"id": {"dtype": "int16"}, "score": {"dtype": "float64"},
                "what": {"max_bytes": 64, "column": "text"}, "other": {"max_bytes": 64}},
        delimiter=dialect.get("delimiter")).shuffle(5).batch(7))
    assert sorted(rows["id"]) == sorted(int(each["id"]) for each in wanted)
    assert (sorted(zip(rows["score"], rows["what"], rows["other"]))
            == sorted((float(each["score"]), each["text"], each["other"])
                      for each in wanted))


def test_csv_without_a_header(attach, tmp_path):
    path = tmp_path / "a.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([[i, TEXTS[i], i / 8] for i in range(len(TEXTS))])
    rows = rows_of(attach, penstock.Dataset.csv(
        path, {"score": {"dtype": "float32", "column": "2"},
               "text": {"max_bytes": 64, "column": "1"}}, header=False).batch(5))
    assert rows["text"] == TEXTS
    assert rows["score"] == [i / 8 for i in range(len(TEXTS))]


def test_csv_rows_that_are_wrong(attach, tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes(b"x,t\n1,a\n2\n3,b,c\n,d\nz,e\n5,\xff\n6,f\n")
    dataset = penstock.Dataset.csv(path, {"x": {"dtype": "int64"},
                                          "t": {"max_bytes": 4}}).batch(1)
    rows = rows_of(attach, dataset.on_error("skip"), job="skips")
    assert rows == {"x": [1, 6], "t": ["a", "f"]}
    # One that is wrong: of several, the first that a worker comes to is told.
    path.write_bytes(b"x,t\n1,a\n2\n3,b\n")
    with pytest.raises(penstock.DataLoss,
                       match=r"a\.csv, row 2 \(offset 8\): 1 columns, wanted 2"):
        rows_of(attach, dataset, job="fails")


def test_random_csv_is_what_python_reads(attach, tmp_path):
    """Random characters of CSV's notation, where Python's strict reader takes them."""
    made = 0
    for seed in range(300):
        rng = np.random.default_rng(seed)
        path = tmp_path / f"{seed}.csv"
        cells = ["".join(rng.choice(list('ab," \n'), rng.integers(0, 6)))
                 for _ in range(rng.integers(2, 12))]
        if seed % 2:
            cells = ['"' + each.replace('"', '""') + '"' for each in cells]
        path.write_bytes(("first,second\n" + "\n".join(map(",".join, zip(
            cells[::2], cells[1::2]))) + "\n").encode())
        with open(path, newline="") as file:
            try:
                wanted = [row for row in csv.reader(file, strict=True) if row][1:]
            except csv.Error:
                continue
        if not wanted or any(len(row) != 2 for row in wanted) or made == 40:
            continue
        made += 1
        rows = rows_of(attach, penstock.Dataset.csv(
            path, {"first": {"max_bytes": 99}, "second": {"max_bytes": 99}}).batch(64),
            job=f"random-{seed}")
        assert list(map(list, zip(rows["first"], rows["second"]))) == wanted
    assert made > 20
