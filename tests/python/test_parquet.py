"""Promise: `source: parquet` gives what pyarrow reads from the same files, in any order,
of Parquet and of Arrow; what is wrong with a file, a column or a row is told with its
place. Method: every value beside pyarrow's own; one test for each thing that can be wrong."""

import contextlib
import datetime
import decimal
import os
import pathlib
import signal
import subprocess
import sys

import numpy as np
import penstock
import pytest

pa = pytest.importorskip("pyarrow", reason="no pyarrow")
pq = pytest.importorskip("pyarrow.parquet", reason="no pyarrow.parquet")
Dataset = penstock.Dataset
PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
ROWS = 60
RNG = np.random.default_rng(4)


def table(first=0, count=ROWS):
    every = range(first, first + count)
    texts = ["", "né", "x" * 30, "😀"]
    return pa.table({
        "id": pa.array(every, pa.int64()),
        "u16": pa.array([i % 60000 for i in every], pa.uint16()),
        "u64": pa.array(every, pa.uint64()),
        "half": pa.array([np.float16(i / 8) for i in every], pa.float16()),
        "real": pa.array([i / 3 for i in every], pa.float64()),
        "even": pa.array([i % 2 == 0 for i in every], pa.bool_()),
        "text": pa.array([texts[i % 4] for i in every], pa.string()),
        "large": pa.array([texts[-i % 4] for i in every], pa.large_string()),
        "kind": pa.array([texts[i % 3] for i in every]).dictionary_encode(),
        "day": pa.array([datetime.date(2020, 1, 1) + datetime.timedelta(i) for i in every]),
        "time": pa.array([i * 1001 for i in every], pa.timestamp("ms", "UTC")),
        "fixed": pa.array([[i, -i] for i in every], pa.list_(pa.int32(), 2)),
        "digest": pa.array([bytes([i % 256] * 4) for i in every], pa.binary(4)),
        "vector": pa.array([[i / 2] * 3 for i in every], pa.list_(pa.float32())),
        "tokens": pa.array([list(range(i % 7)) for i in every], pa.list_(pa.int32())),
        "boxes": pa.array([[[i, k, 1, 2] for k in range(i % 4)] for i in every],
                          pa.large_list(pa.list_(pa.float32()))),
        "raw": pa.array([bytes(range(i % 5)) for i in every], pa.binary()),
        "meta": pa.array([{"inner": {"x": i * 2}, "a.b": i} for i in every]),
    })


ROOMS = {"tokens": 8, "boxes": 4, "raw": 6}
COLUMNS = ["id", "u16", "u64", "half", "real", "even", "text", "large", "kind", "day", "time",
           "fixed", "digest", "vector", "tokens", "boxes", "raw", "meta.inner.x", "meta.a.b"]


def write_parquet(path, rows):
    pq.write_table(rows, path, row_group_size=7)


def write_file(path, rows, **options):
    with pa.ipc.new_file(path, rows.schema, **options) as writer:
        writer.write_table(rows, max_chunksize=7)


def write_compressed(path, rows):
    write_file(path, rows, options=pa.ipc.IpcWriteOptions(compression="lz4"))


def write_stream(path, rows):
    with pa.ipc.new_stream(path, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=7)


WRITERS = [write_parquet, write_file, write_compressed, write_stream]


def wanted_of(rows):
    """By feature, what a row has of each."""
    rows = rows.to_pylist()
    for row in rows:
        meta = row.pop("meta")
        row["meta.inner.x"], row["meta.a.b"] = meta["inner"]["x"], meta["a.b"]
        row["day"] = (row["day"] - datetime.date(1970, 1, 1)).days
        row["time"] = round(row["time"].timestamp() * 1000)
        row["digest"], row["raw"] = list(row["digest"]), list(row["raw"])
    return rows


def rows_of(reader):
    """Rows as Python has them: lists and texts without what fills them."""
    rows = []
    for batch in reader:
        names = list(batch)
        for i in range(batch.rows):
            row = {name: np.array(batch[name][i]) for name in names}
            for name in names:
                if name + ".length" in row:
                    row[name] = row[name][:row.pop(name + ".length")]
                elif name + "_bytes" in row:
                    text = bytes(row[name])
                    size = row.pop(name + "_bytes")
                    assert not any(text[size:])
                    row[name] = text[:size].decode()
            rows.append({name: value if isinstance(value, str) else value.tolist()
                         for name, value in row.items()})
    return rows


@pytest.mark.parametrize("shuffled", [False, True])
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_every_value_is_that_of_pyarrow(attach, tmp_path, write, shuffled):
    wanted = []
    for name, first, count in (("a", 0, ROWS), ("b", ROWS, 1), ("c", ROWS + 1, 20)):
        write(str(tmp_path / name), table(first, count))
        wanted += wanted_of(table(first, count))
    dataset = Dataset.parquet(tmp_path / "*", COLUMNS, max_length=ROOMS).batch(9)
    reader = attach(dataset.shuffle(3) if shuffled else dataset)
    spec = reader.element_spec
    assert spec["u16"].dtype == "int32" and spec["boxes"].shape == (4, 4)
    assert spec["half"].dtype == "float16" and spec["vector"].shape == (3,)
    rows = rows_of(reader)
    assert shuffled == ([row["id"] for row in rows] != list(range(len(wanted))))
    for row in rows:
        assert row == wanted[row["id"]]
    assert len(rows) == len(wanted)


def test_all_columns_without_a_choice(attach, tmp_path):
    write_parquet(tmp_path / "a", table().select(["id", "meta"]))
    batch = attach(Dataset.parquet(tmp_path / "a").batch(4)).next()
    assert sorted(batch) == ["id", "meta.a.b", "meta.inner.x"]


def test_pictures_of_hugging_face(attach, tmp_path):
    pictures = pytest.importorskip("PIL.Image", reason="no Pillow")
    import io
    pixels = RNG.integers(0, 256, (5, 8, 8, 3), np.uint8)
    images = []
    for each in pixels:
        file = io.BytesIO()
        pictures.fromarray(each).save(file, "PNG")
        images.append({"bytes": file.getvalue(), "path": None})
    write_stream(str(tmp_path / "a.arrow"), pa.table({"image": images, "label": range(5)}))
    batch = attach(Dataset.parquet(tmp_path / "a.arrow", ["image.bytes", "label"]).map(
        penstock.decode_image(8, feature="image.bytes")).batch(5)).next()
    np.testing.assert_array_equal(batch["image.bytes"], pixels)


def test_slices_of_dictionaries_and_lists(attach, tmp_path):
    rows = table().slice(11, 13).combine_chunks()
    write_file(str(tmp_path / "a"), rows)
    read = rows_of(attach(Dataset.parquet(tmp_path / "a", COLUMNS, max_length=ROOMS).batch(13)))
    assert read == wanted_of(rows)


def test_nulls(attach, failure, tmp_path):
    write_parquet(tmp_path / "a", pa.table({
        "x": [1, None, 3], "t": ["a", "b", None], "l": pa.array([None, [1], [2, 3]]),
        "s": pa.array([{"y": 1}, None, {"y": None}])}))
    dataset = Dataset.parquet(tmp_path / "a", max_length={"l": 3}, default={
        "x": -1, "t": "?", "l": [], "s.y": 9}).batch(3)
    assert rows_of(attach(dataset, job="filled")) == [
        {"x": 1, "t": "a", "l": [], "s.y": 1}, {"x": -1, "t": "b", "l": [1], "s.y": 9},
        {"x": 3, "t": "?", "l": [2, 3], "s.y": 9}]
    for name, row in (("x", 1), ("t", 2), ("s.y", 1)):
        text = failure(Dataset.parquet(tmp_path / "a", [name]).batch(1), job=name)
        assert f"a, row {row} (row group 0): column '{name}' is null; give it" in text
    skipped = Dataset.parquet(tmp_path / "a", ["x"]).batch(1).on_error("skip")
    assert rows_of(attach(skipped, job="skips")) == [{"x": 1}, {"x": 3}]


def test_a_default_that_does_not_fit(failure, tmp_path):
    write_parquet(tmp_path / "a", table())
    for name, value in (("u16", "a"), ("even", 2), ("text", 1), ("tokens", [1]), ("id", 0.5)):
        text = failure(Dataset.parquet(tmp_path / "a", [name], max_length={
            "tokens": 9} if name == "tokens" else None, default={name: value}).batch(1),
            job=f"default-{name}")
        assert f"default: column '{name}' wants" in text
    text = failure(Dataset.parquet(tmp_path / "a", ["id"], default={"y": 1}).batch(1), job="y")
    assert "default: there is no column 'y'; there are: id" in text


def test_a_null_within_a_list_is_an_error(failure, attach, tmp_path):
    write_parquet(tmp_path / "a", pa.table({
        "l": [[1, 2], [3, None], []], "f": [[1, 2], [3], [4, 5]]}))
    text = failure(Dataset.parquet(tmp_path / "a", "l", max_length={"l": 2}).batch(1), job="l")
    assert "row 1 (row group 0): column 'l' has a null within" in text
    dataset = Dataset.parquet(tmp_path / "a", "f").batch(1)
    assert "row 1 (row group 0): column 'f'" in failure(dataset, job="f")
    assert "max_length: {f: ...}" in failure(dataset, job="g")
    assert rows_of(attach(dataset.on_error("skip"), job="h")) == [{"f": [1, 2]}, {"f": [4, 5]}]


def test_longer_texts_and_lists(failure, attach, tmp_path):
    write_parquet(tmp_path / "a", pa.table({"t": ["ab", "né"], "l": [[1], [1, 2, 3]]}))
    text = failure(Dataset.parquet(tmp_path / "a", "t", max_bytes=2).batch(1), job="t")
    assert "column 't': text of 3 bytes; at most 2 fit (max_bytes, or `longer: cut`)" in text
    text = failure(Dataset.parquet(tmp_path / "a", "l", max_length={"l": 2}).batch(1), job="l")
    assert "column 'l': a list of 3; at most 2 fit" in text
    assert rows_of(attach(Dataset.parquet(
        tmp_path / "a", max_bytes=2, max_length={"l": 2}, longer="cut").batch(1))) == [
            {"t": "ab", "l": [1]}, {"t": "n", "l": [1, 2]}]


def test_text_that_is_not_utf8(failure, attach, tmp_path):
    bad = pa.array([b"a", b"\xff\xfe", b"b"]).view(pa.string())
    write_file(str(tmp_path / "a"), pa.table({"t": bad, "id": range(3)}))
    text = failure(Dataset.parquet(tmp_path / "a", "t").batch(1), job="fails")
    assert "row 1 (row group 0): column 't' is not UTF-8 at byte 0" in text
    assert rows_of(attach(Dataset.parquet(tmp_path / "a").batch(1).on_error("skip"))) == [
        {"t": "a", "id": 0}, {"t": "b", "id": 2}]
    write_parquet(tmp_path / "b", pa.table({"t": bad.view(pa.binary())}))
    rows = rows_of(attach(Dataset.parquet(tmp_path / "b", max_length={"t": 4}).batch(1),
                          job="bytes"))
    assert [bytes(row["t"]) for row in rows] == [b"a", b"\xff\xfe", b"b"]


@pytest.mark.parametrize("column, text", [
    (pa.array([decimal.Decimal("1.5")]), "decimal128(2, 1); wanted numbers.*cast it to float64"),
    (pa.array([["a"]]), "list<.*leave it out of `columns`"),
    (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int64())), "map<.*leave it out"),
    (pa.array([None]), "null; wanted"),
    (pa.array([{"y": 1}]), r"struct<y: int64>; .*name its fields \(x\.y\)"),
])
def test_a_type_that_no_feature_has(failure, tmp_path, column, text):
    write_file(str(tmp_path / "a"), pa.table({"x": column}))
    import re
    assert re.search("a: column 'x' is " + text.replace("(2,", r"\(2,").replace("1);", r"1\);"),
                     failure(Dataset.parquet(tmp_path / "a", "x").batch(1)))


def test_a_column_that_is_not_there(failure, tmp_path):
    write_parquet(tmp_path / "a", table().select(["id", "meta"]))
    assert "a has no column 'label'; it has: id, meta.inner.x, meta.a.b" in failure(
        Dataset.parquet(tmp_path / "a", ["id", "label"]).batch(1))


def test_a_later_file_with_another_schema(failure, tmp_path):
    write_parquet(tmp_path / "a", pa.table({"x": [1]}))
    write_parquet(tmp_path / "b", pa.table({"x": [0.5]}))
    text = failure(Dataset.parquet([tmp_path / "a", tmp_path / "b"]).batch(1))
    assert "b: column 'x' is float64; that of" in text and text.endswith("a is int64")


def test_files_that_are_none(failure, tmp_path):
    write_parquet(tmp_path / "good", table())
    good = (tmp_path / "good").read_bytes()
    write_file(str(tmp_path / "arrow"), table())
    arrow = (tmp_path / "arrow").read_bytes()
    for name, data, text in [
            ("empty", b"", "empty is empty; wanted a file of Parquet"),
            ("garbage", b"hello" * 99, "garbage begins with b'hellohel'; wanted"),
            ("cut", good[:len(good) // 2], "cut: it is damaged ("),
            ("magic", good[:-4] + b"PAR2", "magic: "),
            ("footer", good[:-8] + b"\xff\xff\xff\x7fPAR1", "footer: "),
            ("noise", good[:-900] + RNG.bytes(892) + good[-8:], "noise: it is damaged ("),
            ("arrow-cut", arrow[:len(arrow) // 2], "arrow-cut: "),
            ("no-rows", None, "no-rows: no rows")]:
        if data is None:
            write_parquet(tmp_path / name, table(0, 0))
        else:
            (tmp_path / name).write_bytes(data)
        assert text in failure(Dataset.parquet(tmp_path / name, "id").batch(1), job=name)


def test_a_page_that_is_damaged_costs_its_row_group(attach, failure, tmp_path):
    rows = pa.table({"x": RNG.integers(0, 1 << 60, 40)})
    pq.write_table(rows, tmp_path / "a", row_group_size=10, compression="zstd",
                   use_dictionary=False)
    found = pq.ParquetFile(tmp_path / "a").metadata.row_group(2).column(0)
    with open(tmp_path / "a", "r+b") as file:
        file.seek(found.data_page_offset)
        file.write(RNG.bytes(found.total_compressed_size))
    dataset = Dataset.parquet(tmp_path / "a").batch(1)
    assert "(row group 2): it is damaged (" in failure(dataset, job="fails")
    read = rows_of(attach(dataset.on_error("skip"), job="skips"))
    assert [row["x"] for row in read] == (rows["x"].to_pylist()[:20] +
                                          rows["x"].to_pylist()[30:])


def test_a_page_that_is_damaged_when_it_says_a_size(failure, tmp_path):
    pq.write_table(pa.table({"t": ["text" * 30] * 40}), tmp_path / "a", use_dictionary=False)
    with open(tmp_path / "a", "r+b") as file:
        file.seek(60)
        file.write(b"\xff" * 100)
    text = failure(Dataset.parquet(tmp_path / "a").batch(1))
    assert "a, row group 0: it is damaged (" in text and "Traceback" not in text


def test_pandas_is_not_imported(tmp_path):
    """pyarrow imports it if it is installed: 1 s of each process."""
    (tmp_path / "pandas.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    write_parquet(tmp_path / "a", table())
    (tmp_path / "spec.yaml").write_text(
        Dataset.parquet(tmp_path / "a", ["id", "time", "text"]).batch(10).to_yaml())
    subprocess.run([PENSTOCK,
                    "check", "--all", "spec.yaml"], check=True, timeout=100, cwd=tmp_path,
                   env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert not (tmp_path / "imported").exists()


@pytest.mark.parametrize("seed", range(8))
def test_noise_in_a_file_is_an_error_or_nothing(attach, tmp_path, seed):
    """Whatever bytes are wrong: the broker lives, and reads the next file."""
    rng = np.random.default_rng(seed)
    write = WRITERS[seed % 4]
    path = str(tmp_path / "a")
    write(path, table())
    data = bytearray(open(path, "rb").read())
    for _ in range(1 + seed):
        data[rng.integers(8, len(data))] ^= 1 << rng.integers(8)
    open(path, "wb").write(data)
    try:
        rows_of(attach(Dataset.parquet(path, COLUMNS, max_length=ROOMS).batch(7).on_error(
            "skip"), job=f"noise-{seed}"))
    except penstock.Error as error:
        assert "parquet" in str(error) or "a, row" in str(error) or str(tmp_path) in str(error)
    write_parquet(tmp_path / "b", pa.table({"x": [seed]}))
    assert rows_of(attach(Dataset.parquet(tmp_path / "b").batch(1), job=f"after-{seed}")) == [
        {"x": seed}]


@pytest.mark.parametrize("how", ["deleted", "replaced", "rewritten"])
def test_a_file_that_goes_in_mid_run(attach, tmp_path, how):
    """Read on by those who have it open, or an error that says so: never other rows."""
    path = tmp_path / "a"
    pq.write_table(pa.table({"x": np.arange(20000)}), path, row_group_size=100)
    reader = attach(Dataset.parquet(path).batch(10))
    seen = reader.next()["x"].tolist()
    if how == "deleted":
        path.unlink()
    elif how == "replaced":
        pq.write_table(pa.table({"x": -np.arange(20000)}), tmp_path / "b", row_group_size=100)
        os.replace(tmp_path / "b", path)
    else:
        pq.write_table(pa.table({"x": -np.arange(20000)}), path, row_group_size=100)
    try:
        for batch in reader:
            seen += batch["x"].tolist()
        assert how != "rewritten"
    except penstock.DataLoss as error:
        assert "has changed since it was opened" in str(error) or "No such file" in str(error)
    assert seen == list(range(len(seen)))


def test_without_pyarrow(tmp_path):
    write_parquet(tmp_path / "a", table())
    (tmp_path / "spec.json").write_text(Dataset.parquet(tmp_path / "a", "id").batch(1).to_json())
    (tmp_path / "modules" / "pyarrow").mkdir(parents=True)
    (tmp_path / "modules" / "pyarrow" / "__init__.py").write_text(
        "raise ImportError('there is none')")
    told = subprocess.run(
        [PENSTOCK, "check",
         str(tmp_path / "spec.json")], text=True, capture_output=True,
        env={**os.environ, "PENSTOCK_PYTHON": sys.executable, "PENSTOCK_SOCKET": "",
             "PENSTOCK_PYTHON_PATH": str(tmp_path / "modules")})
    assert told.returncode != 0
    assert "there is none): pip install pyarrow" in told.stdout + told.stderr


def test_filters_by_columns(attach, failure, tmp_path):
    for name, first in (("a", 0), ("b", ROWS)):
        write_parquet(tmp_path / name, table(first))
    dataset = Dataset.parquet(tmp_path / "*", ["id", "text", "meta.inner.x", "vector"])

    def ids(filtered, job):
        return [row["id"] for row in rows_of(attach(filtered.batch(7), job=job))]

    assert ids(dataset.filter("file", matches="*b"), "file") == list(range(ROWS, 2 * ROWS))
    assert ids(dataset.filter("row_group", include=[0, 9]), "group") == [
        *range(7), *range(ROWS, ROWS + 7)]
    assert ids(dataset.filter("meta.inner.x", min=100, max=110), "x") == list(range(50, 56))
    assert ids(dataset.filter("text", include=["né"]), "text") == list(range(1, 2 * ROWS, 4))
    assert "meta.inner.x" in failure(dataset.filter("tokens", min=1).batch(1), job="none")


def test_a_null_of_a_filters_column(failure, tmp_path):
    write_parquet(tmp_path / "a", pa.table({"x": [1, None]}))
    text = failure(Dataset.parquet(tmp_path / "a").filter("x", min=1).batch(1))
    assert "a, row 1 (row group 0): column 'x' is null" in text and "mend" in text


def test_windows_of_row_groups(attach, tmp_path):
    """A row group counts as a file: those of a window come together, whatever file has
    them."""
    for name, first in (("a", 0), ("b", 70)):
        pq.write_table(pa.table({"x": range(first, first + 70)}), tmp_path / name,
                       row_group_size=7)
    dataset = Dataset.parquet(tmp_path / "*").shuffle(5, window_files=2).batch(14)
    steps = [batch["x"].tolist() for batch in attach(dataset)]
    assert sorted(sum(steps, [])) == list(range(140))
    for step in steps:
        assert len({x // 7 for x in step}) == 2 and step != sorted(step)
    assert {x // 7 for x in steps[0]} != {0, 1}


def test_a_shuffle_of_more_than_stays_decoded_is_warned_of(tmp_path):
    pq.write_table(pa.table({"x": np.zeros(40 << 20)}),
                   tmp_path / "a", row_group_size=1 << 20, use_dictionary=False,
                   compression="zstd")
    for name in "bcd":
        os.link(tmp_path / "a", tmp_path / name)
    source = Dataset.parquet(tmp_path / "[a-d]", ["x"])
    for dataset, warned in ((source.shuffle(1), True), (source, False),
                            (source.shuffle(1, window_files=4), False)):
        (tmp_path / "spec.json").write_text(dataset.batch(64).to_json())
        told = subprocess.run(
            [PENSTOCK, "check",
             str(tmp_path / "spec.json")], text=True, capture_output=True,
            env={**os.environ, "PENSTOCK_PYTHON": sys.executable, "PENSTOCK_SOCKET": ""})
        assert told.returncode == 0, told.stderr
        assert ("window_files: 4" in told.stdout + told.stderr) == warned


def processes_that_read(column):
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            command = (process / "cmdline").read_bytes()
            if b"exec(open(5).read())" in command and column.encode() in command:
                found.append(int(process.name))
    return found


@pytest.mark.parametrize("write", [write_parquet, write_file], ids=["parquet", "arrow"])
def test_killed_processes_cost_no_row(attach, tmp_path, write):
    write(str(tmp_path / "a"), pa.table({"of_killed": range(3000)}))
    reader = attach(Dataset.parquet(tmp_path / "a", "of_killed").shuffle(2).batch(10))
    seen = []
    for number, batch in enumerate(reader):
        seen += batch["of_killed"].tolist()
        if number == 5:  # once: a second death with a group in work would be its fault
            killed = processes_that_read("of_killed")
            for process in killed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
    assert sorted(seen) == list(range(3000)) and killed


def test_a_state_resumes(attach, tmp_path):
    write_parquet(tmp_path / "a", table())
    dataset = Dataset.parquet(tmp_path / "a", ["id", "tokens"], max_length={
        "tokens": 8}).shuffle(1).batch(8).repeat(2)
    reader = attach(dataset, job="first")
    for _ in range(5):
        reader.next()
    state = reader.state_dict()
    assert rows_of(attach(dataset, job="second", state=state)) == rows_of(reader)
