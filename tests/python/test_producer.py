"""Rows that processes put (penstock.producer, Dataset.stream) reach the ranks as they
were put; what cannot be put is refused by name."""

import multiprocessing
import os
import re
import signal
import sys
import threading

import numpy as np
import penstock
import pytest

SPEC = {"image": penstock.TensorSpec((2, 3), "float32"),
        "label": penstock.TensorSpec((), "int64")}


@pytest.fixture
def job(request):
    return request.node.name[:60]


@pytest.fixture
def stream(attach, job):
    """Attaches the one rank of a job of the test's name."""
    return lambda **options: attach(
        penstock.Dataset.stream(SPEC, **options).batch(8), job=job)


def rows(first, count):
    labels = np.arange(first, first + count)
    return {"image": np.repeat(labels, 6).reshape(-1, 2, 3).astype(np.float32),
            "label": labels}


def labels_of(reader):
    taken = []
    for batch in reader:
        assert (batch["image"] == batch["label"][:, None, None]).all()
        taken += batch["label"].tolist()
    return taken


def in_background(body):
    thread = threading.Thread(target=body)
    thread.start()
    return thread


def test_put(stream, job):
    def produce():
        with penstock.producer(job, SPEC, batch=5, timeout_s=60) as out:
            out.put(rows(0, 17))
            out.put(rows(17, 3))

    thread = in_background(produce)
    reader = stream()
    with pytest.raises(TypeError, match="a stream is as long"):
        len(next(iter(reader.epochs())))
    assert labels_of(reader) == list(range(20))
    thread.join()


def test_a_slot_is_written_in_place(stream, job):
    reader = stream()
    with penstock.producer(job, SPEC, batch=8, timeout_s=60) as out:
        with out.slot() as slot:
            assert slot["image"].shape == (8, 2, 3)
            for name, array in rows(0, 8).items():
                slot[name][...] = array
        with pytest.raises(ValueError):
            slot["label"][0] = 1
        with pytest.raises(KeyError):
            with out.slot(4) as slot:
                slot["label"][...] = -1
                raise KeyError
        with out.slot(2) as slot:
            for name, array in rows(8, 2).items():
                slot[name][...] = array
    assert labels_of(reader) == list(range(10))


def test_bfloat16_is_ml_dtypes(attach, job):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    spec = {"x": penstock.TensorSpec((2,), "bfloat16")}
    reader = attach(penstock.Dataset.stream(spec).batch(2), job=job)
    with penstock.producer(job, spec, batch=2, timeout_s=60) as out:
        out.put({"x": np.array([[1, 2], [3, 4]], ml_dtypes.bfloat16)})
    (batch,) = list(reader)
    assert batch["x"].astype(np.float32).tolist() == [[1, 2], [3, 4]]


def produce_and_die(socket, job):
    out = penstock.producer(job, SPEC, batch=8, socket=socket, timeout_s=60)
    out.put(rows(0, 8))
    with out.slot() as slot:
        slot["label"][...] = -1
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_process_loses_only_what_it_did_not_put(broker, stream, job):
    reader = stream()
    process = multiprocessing.get_context("spawn").Process(
        target=produce_and_die, args=(broker.socket, job))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    with penstock.producer(job, SPEC, batch=8, timeout_s=60) as out:
        assert out.next_row == 8
        out.put(rows(8, 4))
    assert labels_of(reader) == list(range(12))


def test_an_exception_in_the_block_reaches_the_ranks(stream, job):
    reader = stream()
    with pytest.raises(ZeroDivisionError):
        with penstock.producer(job, SPEC, batch=8, timeout_s=60):
            1 / 0
    with pytest.raises(penstock.Aborted, match="ZeroDivisionError: division"):
        labels_of(reader)


def test_ranks_that_leave_end_the_producers(stream, job):
    reader = stream()
    out = penstock.producer(job, SPEC, batch=8, timeout_s=60)
    out.put(rows(0, 8))
    reader.close()
    with pytest.raises(penstock.Aborted, match="is over"):
        while True:
            out.put(rows(0, 8))


@pytest.mark.parametrize("wrong, message", [
    ({"image": np.zeros((4, 2, 2)), "label": np.zeros(4, int)}, "wanted"),
    ({"image": np.zeros((4, 2, 3)), "label": np.zeros(4)}, "does not fit"),
    ({"image": np.zeros((4, 2, 3), "f4"), "label": np.zeros(3, int)},
     "different numbers"),
    ({"image": np.zeros((4, 2, 3), "f4")}, "no rows of feature 'label'"),
    ({"image": np.zeros((4, 2, 3), "f4"), "label": np.zeros(4, int), "x": 1},
     "no feature of the stream: x"),
])
def test_wrong_rows(stream, job, wrong, message):
    stream()
    with penstock.producer(job, SPEC, batch=8, timeout_s=60) as out:
        with pytest.raises(ValueError, match=message):
            out.put(wrong)


def test_wrong_job(stream, job):
    stream()
    with pytest.raises(penstock.InvalidArgument, match="wants rows of image"):
        penstock.producer(job, {"x": penstock.TensorSpec((), "int64")})
    with pytest.raises(penstock.InvalidArgument, match="no dtype 'int128'"):
        penstock.producer(job, {"x": penstock.TensorSpec((), "int128")})
    with pytest.raises(penstock.DeadlineExceeded, match="no rank has attached"):
        penstock.producer(job + "-none", SPEC, timeout_s=0.2)


def test_arrays_may_outlive_the_producer(stream, job):
    stream()
    out = penstock.producer(job, SPEC, batch=8, timeout_s=60)
    with out.slot() as slot:
        slot["label"][...] = 7
    out.finish()
    del out
    assert slot["label"].tolist() == [7] * 8


def test_the_spec_says_the_same(job):
    dataset = penstock.Dataset.stream(
        {"x": {"dtype": "int8", "shape": [4]}}, producers=3).batch(2)
    assert dataset.to_dict()["source"] == {
        "stream": {"features": {"x": {"dtype": "int8", "shape": [4]}},
                   "producers": 3}}
    assert dataset == penstock.Dataset.stream(
        {"x": penstock.TensorSpec((4,), "int8")}, producers=3).batch(2)


def test_integers_are_put_if_they_fit(attach, job):
    spec = {"x": penstock.TensorSpec((), "int8")}
    reader = attach(penstock.Dataset.stream(spec).batch(4), job=job)
    with penstock.producer(job, spec, batch=4, timeout_s=60) as out:
        for values in ([300, 1], np.array([-129]), np.array([200], np.uint8),
                       np.array([2 ** 63 + 1], np.uint64)):
            with pytest.raises(ValueError, match="feature 'x': row 0 has .*, which "
                                                 "does not fit into int8: wanted "
                                                 "integers from -128 to 127"):
                out.put({"x": values})
        with pytest.raises(ValueError, match="float64 does not fit"):
            out.put({"x": [1.0]})
        with pytest.raises(ValueError, match=r"shape \(\), wanted \[rows\]"):
            out.put({"x": 3})
        out.put({"x": [-128, 127]})
        out.put({"x": np.array([7, 100], np.uint64)})
    (batch,) = list(reader)
    assert batch["x"].tolist() == [-128, 127, 7, 100]


@pytest.mark.parametrize("dtype,values,row,value", [
    ("float32", [[0, 1], [2, 3], [1e300, 0]], 2, "1e+300"),
    ("float32", [[0, 0], [0, -1e39]], 1, "-1e+39"),
    ("float16", np.array([[65504, 1], [65520, 1]], np.float32), 1, "65520"),
    ("float16", [[0, 70000]], 0, "70000"),
    ("uint8", [[0, 255], [300, 0]], 1, "300"),
    ("uint8", [[0, -1]], 0, "-1"),
    ("uint8", [[0, 255], [0, float("nan")]], 1, "nan"),
    ("int64", [[0, 1], [1.5, 0]], 1, "1.5"),
    ("bool", [[0, 1], [1, 2]], 1, "2"),
])
def test_a_value_that_does_not_fit_is_named(attach, job, dtype, values, row, value):
    spec = {"label": penstock.TensorSpec((), "int64"),
            "x": penstock.TensorSpec((2,), dtype)}
    reader = attach(penstock.Dataset.stream(spec).batch(1), job=job)
    # A put of several pieces: none of them is put.
    with penstock.producer(job, spec, batch=1, timeout_s=60) as out:
        with pytest.raises(ValueError, match=rf"feature 'x': row {row} has "
                                             rf"{re.escape(value)}.*, which does not "
                                             rf"fit into {dtype}"):
            out.put({"x": values, "label": np.arange(len(values))})
    assert list(reader) == []


def test_values_that_fit_come_as_they_are(attach, job):
    spec = {"x": penstock.TensorSpec((), "float32"),
            "flag": penstock.TensorSpec((), "bool")}
    reader = attach(penstock.Dataset.stream(spec).batch(5), job=job)
    inf = float("inf")
    with penstock.producer(job, spec, batch=5, timeout_s=60) as out:
        out.put({"x": np.array([inf, -inf, np.nan, 1e-300, 3.4e38]),
                 "flag": [0, 1, 1, 0, 1]})
        out.put({"x": np.array([1, 2], np.int64), "flag": np.array([True, False])})
    first, second = reader
    assert first["x"].tolist()[:2] == [inf, -inf] and np.isnan(first["x"][2])
    assert first["x"].tolist()[3:] == [0, float(np.float32(3.4e38))]
    assert first["flag"].tolist() == [False, True, True, False, True]
    assert second["x"].tolist() == [1, 2]


def test_values_of_the_features_own_dtype_are_not_looked_at(attach, job, monkeypatch):
    spec = {"x": penstock.TensorSpec((), "float32"),
            "y": penstock.TensorSpec((), "int64")}
    attach(penstock.Dataset.stream(spec).batch(4), job=job)
    monkeypatch.setattr(sys.modules["penstock.producer"], "_fitting", None)
    with penstock.producer(job, spec, batch=4, timeout_s=60) as out:
        out.put({"x": np.zeros(4, np.float32), "y": np.zeros(4, np.int64)})
        out.put({"x": np.zeros(4, np.float16), "y": np.zeros(4, np.uint32)})
        with pytest.raises(TypeError, match="not callable"):
            out.put({"x": np.zeros(4), "y": np.zeros(4, np.int64)})


LISTS = {"tokens": penstock.TensorSpec((4,), "int32"),
         "tokens.length": penstock.TensorSpec((), "int64"),
         "boxes": penstock.TensorSpec((2, 4), "float32"),
         "boxes.length": penstock.TensorSpec((), "int64")}


def test_lists(attach, job):
    reader = attach(penstock.Dataset.stream(LISTS).batch(3), job=job)
    with penstock.producer(job, LISTS, batch=2, timeout_s=60) as out:
        out.put({"tokens": [[7, 8, 9], [], np.arange(4)],
                 "boxes": [[], np.ones((1, 4)), [[0, 0, 9, 9], [1, 2, 3, 4]]]})
    batch = reader.next()
    items, splits = batch.ragged("tokens")
    assert items.tolist() == [7, 8, 9, 0, 1, 2, 3] and splits.tolist() == [0, 3, 3, 7]
    assert batch["tokens"].tolist() == [[7, 8, 9, 0], [0] * 4, [0, 1, 2, 3]]
    assert batch.lengths("boxes").tolist() == [0, 1, 2]
    assert batch["boxes"][2].tolist() == [[0, 0, 9, 9], [1, 2, 3, 4]]


@pytest.mark.parametrize("wrong, message", [
    ({"tokens": [[1] * 5]}, r"'tokens', row 0: an array of shape \(5,\), wanted \[at most 4\]"),
    ({"tokens": [3]}, r"'tokens', row 0: an array of shape \(\), wanted"),
    ({"boxes": [[[1, 2, 3]]]}, r"'boxes', row 0: .*\(1, 3\), wanted \[at most 2, 4\]"),
    ({"tokens": [[2 ** 40]]}, "'tokens'"),
    ({"tokens": [[0.5]]}, "'tokens'"),
    ({"tokens": np.zeros((1, 4), np.int32), "tokens.length": [5]},
     "'tokens.length', row 0: a length of 5, wanted 0 to 4"),
    ({"tokens": np.zeros((1, 4), np.int32), "tokens.length": [-1]}, "a length of -1"),
    ({"tokens": [[1, 2], [3]], "tokens.length": [2, 1]},
     r"feature 'tokens': nested lists .*'tokens\.length', which is then left out"),
    ({"boxes": [[[1, 2, 3, 4], [1]]]}, "feature 'boxes': "),
])
def test_lists_that_do_not_fit(attach, job, wrong, message):
    attach(penstock.Dataset.stream(LISTS).batch(1), job=job)
    with penstock.producer(job, LISTS, batch=1, timeout_s=60) as out:
        with pytest.raises(ValueError, match=message):
            out.put({"tokens": [[1]], "boxes": [[[1, 2, 3, 4]]], **wrong})


def test_a_bool_of_another_byte_is_refused(attach, job):
    spec = {"mask": penstock.TensorSpec((3,), "bool")}
    reader = attach(penstock.Dataset.stream(spec).batch(2), job=job)
    mask = np.array([[0, 1, 0], [1, 0, 2]], np.uint8).view(bool)
    with penstock.producer(job, spec, batch=2, timeout_s=60) as out:
        with pytest.raises(penstock.InvalidArgument,
                           match="feature 'mask': byte 2 of row 1 of this put is 2; "
                                 "a bool is 0 or 1"):
            out.put({"mask": mask})
        out.put({"mask": mask.view(np.uint8) != 0})
    (batch,) = reader
    assert batch["mask"].tolist() == [[False, True, False], [True, False, True]]


def test_one_slot_at_a_time(stream, job):
    reader = stream()
    with penstock.producer(job, SPEC, batch=8, timeout_s=60) as out:
        with out.slot(8) as slot:
            with pytest.raises(penstock.FailedPrecondition, match="is open"):
                with out.slot(1):
                    pass
            with pytest.raises(penstock.FailedPrecondition, match="is open"):
                out.put(rows(0, 1))
            for name, array in rows(0, 8).items():
                slot[name][...] = array
        for count in (0, 9, -1):
            with pytest.raises(penstock.InvalidArgument, match="1 to 8"):
                with out.slot(count):
                    pass
        out.finish()
        out.finish()
    assert labels_of(reader) == list(range(8))


def test_a_spec_that_cannot_be(broker):
    for shape in ((-2,), (0,), (2 ** 64,)):
        with pytest.raises(penstock.InvalidArgument, match="feature 'x': shape"):
            penstock.producer("none", {"x": penstock.TensorSpec(shape, "int8")})
    for batch in (0, 2 ** 64):
        with pytest.raises(penstock.InvalidArgument, match="batch"):
            penstock.producer("none", {"x": penstock.TensorSpec((), "int8")}, batch=batch)
    for name in ("\ud800", "x\0y"):
        with pytest.raises(penstock.InvalidArgument, match="element_spec"):
            penstock.producer("none", {name: penstock.TensorSpec((), "int8")})
    for spec in ({1: penstock.TensorSpec((), "int8")}, [("x", "int8")], {"x": 3}):
        with pytest.raises(TypeError, match="feature"):
            penstock.producer("none", spec)
    with pytest.raises(penstock.InvalidArgument, match="no 'shape'"):
        penstock.producer("none", {"x": {"dtype": "int8"}})
    with pytest.raises(penstock.InvalidArgument, match="complex64.*uint8"):
        penstock.producer("none", {"x": penstock.TensorSpec((), "complex64")})
