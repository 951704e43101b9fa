"""Sources tokens, npy and npz deliver what NumPy reads from the same files."""

import io

import numpy as np
import penstock
import pytest

RNG = np.random.default_rng(7)


def rows_of(attach, dataset, **options):
    """All rows of one epoch, by feature."""
    reader = attach(dataset, **options)
    rows = {}
    for batch in reader:
        for name in batch:
            rows.setdefault(name, []).append(np.array(batch[name]))
    return {name: np.concatenate(each) for name, each in rows.items()}


# ---- tokens

def nano_gpt_batches(path, block):
    """x and y of consecutive blocks, as nanoGPT takes them from its memmap."""
    data = np.memmap(path, dtype=np.uint16, mode="r")
    starts = range(0, len(data) - block, block)
    x = np.stack([data[i:i + block].astype(np.int64) for i in starts])
    y = np.stack([data[i + 1:i + 1 + block].astype(np.int64) for i in starts])
    return x, y


@pytest.mark.parametrize("tokens", [1000, 1024 + 1, 1024, 65])
def test_tokens_are_those_of_the_memmap(attach, tmp_path, tokens):
    path = tmp_path / "train.bin"
    RNG.integers(0, 50257, tokens).astype(np.uint16).tofile(path)
    rows = rows_of(attach, penstock.Dataset.tokens(path, 64).batch(3))
    x, y = nano_gpt_batches(path, 64)
    assert rows["input"].dtype == np.int64
    np.testing.assert_array_equal(rows["input"], x)
    np.testing.assert_array_equal(rows["target"], y)


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "int32", "int64"])
@pytest.mark.parametrize("output", ["int32", "int64"])
@pytest.mark.parametrize("npy", [False, True])
def test_tokens_of_every_dtype(attach, tmp_path, dtype, output, npy):
    files, wanted = [], []
    for i, count in enumerate((50, 8, 33)):
        tokens = RNG.integers(0, 60_000, count).astype(dtype)
        files.append(tmp_path / f"{i}.npy" if npy else tmp_path / f"{i}.bin")
        np.save(files[-1], tokens) if npy else tokens.tofile(files[-1])
        wanted.append(np.lib.stride_tricks.sliding_window_view(tokens, 8)[::3])
    rows = rows_of(attach, penstock.Dataset.tokens(
        files, 8, dtype=None if npy else dtype, stride=3, targets="none",
        output_dtype=output).batch(4))
    assert list(rows) == ["input"] and rows["input"].dtype == output
    np.testing.assert_array_equal(rows["input"], np.concatenate(wanted))


def test_tokens_behind_a_header(attach, tmp_path):
    path = tmp_path / "shard.bin"
    header = np.zeros(256, dtype=np.int32)
    tokens = np.arange(100, dtype=np.uint16)
    path.write_bytes(header.tobytes() + tokens.tobytes())
    rows = rows_of(attach, penstock.Dataset.tokens(
        path, 10, header_bytes=1024).batch(9))
    assert rows["input"][:, 0].tolist() == list(range(0, 90, 10))
    assert rows["target"][:, -1].tolist() == list(range(10, 100, 10))


def test_a_token_too_large_for_int32_is_an_error_of_its_sample(attach, tmp_path):
    path = tmp_path / "t.bin"
    np.array([1, 2, 3, 2**31, 5, 6], dtype=np.uint32).tofile(path)
    tokens = penstock.Dataset.tokens(path, 2, dtype=np.uint32, targets="none",
                                     output_dtype=np.int32).batch(1)
    with pytest.raises(penstock.DataLoss, match=r"t\.bin, offset 8: token 1 of the "
                                                r"sequence does not fit into int32"):
        rows_of(attach, tokens, job="fails")
    skipped = rows_of(attach, tokens.on_error("skip"), job="skips")
    assert skipped["input"].tolist() == [[1, 2], [5, 6]]


def documents_of(tokens, border, ends):
    """The same by NumPy."""
    cuts = np.flatnonzero(tokens == border) + int(ends)
    return [each for each in np.split(tokens, cuts) if len(each)]


@pytest.mark.parametrize("dtype, form", [("uint16", "bin"), ("uint32", "npy"),
                                         ("uint16", "llm.c")])
@pytest.mark.parametrize("where", ["end", "begin"])
def test_documents_are_those_between_the_token(attach, tmp_path, dtype, form, where):
    rng = np.random.default_rng(len(form))
    files, wanted = [], []
    for i in range(3):
        tokens = rng.integers(0, 50, 2000).astype(dtype)
        files.append(tmp_path / f"{i}.{'npy' if form == 'npy' else 'bin'}")
        if form == "npy":
            np.save(files[-1], tokens)
        else:
            header = np.zeros(256 if form == "llm.c" else 0, np.int32)
            header[:3] = [20240520, 1, len(tokens)][:len(header)]
            files[-1].write_bytes(header.tobytes() + tokens.tobytes())
        wanted += documents_of(tokens, 7, where == "end")
    data = penstock.Dataset.tokens(files, documents={where: 7})
    rows = rows_of(attach, data.batch(16))
    assert rows["tokens.length"].tolist() == [len(each) for each in wanted]
    for row, document in zip(rows["tokens"], wanted):
        assert row.tolist() == [*document, *[0] * (len(row) - len(document))]
    packed = rows_of(attach, data.shuffle(seed=1).batch(4, pack=penstock.pack(
        512, with_=["seq_lens", "records"])), job="packed")
    found = {}
    for row, lengths, records in zip(packed["tokens"], packed["seq_lens"], packed["records"]):
        at = 0
        for length, record in zip(lengths, records):
            found[record] = row[at:at + length].tolist()
            at += length
    found.pop(-1, None)
    assert [found[i] for i in range(len(wanted))] == [each.tolist() for each in wanted]


@pytest.mark.parametrize("options, message", [
    ({}, "source.tokens: needs one of sequence_length, documents"),
    (dict(sequence_length=8, documents={"end": 1}), "exclude each other"),
    (dict(documents={}), "documents: needs one of end, begin"),
    (dict(documents={"end": 1, "begin": 1}), "'end' and 'begin' exclude each other"),
    (dict(documents={"end": -1}), "documents.end: wanted a whole number from 0"),
    (dict(documents={"end": 1}, stride=4), "stride: is of sequences: give their `sequence_l"),
    (dict(documents={"end": 1}, targets="none"), "targets: is of sequences"),
])
def test_a_spec_of_documents_that_cannot_be(attach, tmp_path, options, message):
    np.arange(9, dtype=np.uint16).tofile(tmp_path / "a.bin")
    with pytest.raises(penstock.InvalidArgument, match=message):
        attach(penstock.Dataset.tokens(tmp_path / "a.bin", **options).batch(1), job="wrong")


# ---- npy, npz

DTYPES = ["uint8", "int8", "int16", "int32", "int64", "float16", "float32",
          "float64", "bool"]


def array_of(dtype, shape):
    bits = RNG.integers(0, 100, shape)
    return bits % 2 == 0 if dtype == "bool" else bits.astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3, 2)])
def test_arrays_of_every_dtype(attach, tmp_path, dtype, shape):
    files, arrays = [], []
    for i, count in enumerate((5, 1, 0, 9)):
        arrays.append(array_of(dtype, (count, *shape)))
        files.append(tmp_path / f"{i}.npy")
        np.save(files[-1], arrays[-1])
    rows = rows_of(attach, penstock.Dataset.npy({"x": files}).batch(4))
    loaded = np.concatenate([np.load(file, mmap_mode="r") for file in files])
    assert rows["x"].dtype == loaded.dtype
    np.testing.assert_array_equal(rows["x"], loaded)


def test_arrays_of_several_features_are_zipped(attach, tmp_path):
    image = array_of("float32", (20, 4, 5))
    label = array_of("int64", (20,))
    weight = array_of("float64", (20, 2))
    np.save(tmp_path / "image.npy", image)
    np.save(tmp_path / "label0.npy", label[:7])
    np.save(tmp_path / "label1.npy", label[7:])
    np.save(tmp_path / "weight.npy", weight)
    dataset = penstock.Dataset.npy({
        "label": [tmp_path / "label0.npy", tmp_path / "label1.npy"],
        "image": tmp_path / "image.npy", "weight": tmp_path / "weight.npy"})
    rows = rows_of(attach, dataset.batch(6), job="in-order")
    for name, array in (("image", image), ("label", label), ("weight", weight)):
        np.testing.assert_array_equal(rows[name], array)
    shuffled = rows_of(attach, dataset.shuffle(3).batch(6), job="shuffled")
    order = [int(np.flatnonzero((image == each).all((1, 2)))[0])
             for each in shuffled["image"]]
    assert sorted(order) == list(range(20)) != order
    np.testing.assert_array_equal(shuffled["label"], label[order])
    np.testing.assert_array_equal(shuffled["weight"], weight[order])


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_every_version_of_the_header(attach, tmp_path, version):
    array = array_of("int32", (6, 2))
    with open(tmp_path / "a.npy", "wb") as file:
        np.lib.format.write_array(file, array, version=version)
    rows = rows_of(attach, penstock.Dataset.npy({"a": tmp_path / "a.npy"}).batch(6))
    np.testing.assert_array_equal(rows["a"], array)


def test_a_file_that_is_written_through_a_memmap(attach, tmp_path):
    array = np.lib.format.open_memmap(tmp_path / "m.npy", mode="w+",
                                      dtype=np.float32, shape=(10, 3))
    array[:] = np.arange(30).reshape(10, 3)
    array.flush()
    rows = rows_of(attach, penstock.Dataset.npy({"m": tmp_path / "m.npy"}).batch(5))
    np.testing.assert_array_equal(rows["m"], array)


@pytest.mark.parametrize("array,way_out", [
    (np.asfortranarray(np.zeros((3, 4))), "ascontiguousarray"),
    (np.zeros((3, 4), ">f4"), "newbyteorder"),
    (np.array([{}, {}], dtype=object), "Python objects"),
    (np.zeros(3, [("a", "i4"), ("b", "f4")]), "structured"),
    (np.array(["a", "b"]), "text"),
    (np.array([b"a", b"b"]), "text"),
    (np.zeros(3, complex), "complex"),
    (np.zeros(3, "M8[ns]"), "times"),
    (np.zeros(3, "V4"), "bytes of no known meaning"),
    (np.zeros(3, np.uint32), "dtype uint32 is none of Penstock's"),
    (np.zeros(3, np.longdouble), "none of Penstock's"),
    (np.array(3.0), "a single value"),
    (np.zeros((0, 3)), "no row"),
    (np.zeros((3, 0)), "wanted rows of 1 to"),
])
def test_arrays_that_are_refused_by_name(attach, tmp_path, array, way_out):
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "a.npz", a=array)
    for dataset in (penstock.Dataset.npy({"a": tmp_path / "a.npy"}),
                    penstock.Dataset.npz(tmp_path / "a.npz", {"a": "a"})):
        with pytest.raises(penstock.InvalidArgument) as failure:
            attach(dataset.batch(1))
        assert way_out in str(failure.value) and "a.np" in str(failure.value)


@pytest.mark.parametrize("features", [{"x": "x"}, {"label": "y", "image": "x"},
                                      {"x": "x.npy", "z": "folder/z"}])
def test_npz(attach, tmp_path, features):
    arrays = {"x": array_of("float32", (12, 3)), "y": array_of("int64", (12,)),
              "folder/z": array_of("bool", (12,))}
    path = tmp_path / "a.npz"
    np.savez(path, **arrays)
    loaded = np.load(path)
    rows = rows_of(attach, penstock.Dataset.npz(path, features).batch(5))
    assert set(rows) == set(features)
    for name, array in features.items():
        np.testing.assert_array_equal(rows[name], loaded[array.replace(".npy", "")])


def test_npz_that_was_written_to_a_pipe(attach, tmp_path):
    class Pipe(io.BytesIO):
        def seekable(self):
            return False

        def tell(self):
            raise io.UnsupportedOperation

        def seek(self, *_):
            raise io.UnsupportedOperation

    pipe = Pipe()
    np.savez(pipe, x=np.arange(10))
    (tmp_path / "a.npz").write_bytes(pipe.getvalue())
    rows = rows_of(attach, penstock.Dataset.npz(tmp_path / "a.npz",
                                                {"x": "x"}).batch(10))
    assert rows["x"].tolist() == list(range(10))


def test_npz_that_is_refused(attach, tmp_path):
    np.savez(tmp_path / "s.npz", x=np.arange(10), y=np.arange(9))

    def refused(file, features, error, match):
        with pytest.raises(error, match=match):
            attach(penstock.Dataset.npz(tmp_path / file, features).batch(1))

    refused("s.npz", {"x": "z"}, penstock.NotFound,
            r"s\.npz: no array 'z'; it has 'x\.npy', 'y\.npy'")
    refused("s.npz", {"x": "x", "y": "y"}, penstock.InvalidArgument,
            r"10 rows of 'x', but .*9 of 'y'")


def test_relative_paths_of_a_spec_file(attach, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(4))
    np.savez(tmp_path / "x.npz", x=np.arange(4))
    for i, source in enumerate(("npy: {features: {x: [x.npy]}}",
                                "npz: {file: x.npz, features: {x: x}}",
                                "tokens: {files: [x.npy], sequence_length: 1,"
                                " targets: none}")):
        path = tmp_path / "spec.yaml"
        path.write_text(f"dataset: d\nsource: {{{source}}}\nbatch: {{size: 4}}\n")
        for how in (str, penstock.Dataset.from_file):
            batch = attach(how(path), job=f"relative-{i}-{how.__name__}").next()
            (name,) = batch
            assert np.array(batch[name]).ravel().tolist() == [0, 1, 2, 3]
