"""Promise: `penstock filter` and Dataset.filter(function) keep exactly the records for
which the function returns True, as Python's own filter does; each is judged once, the
answers are refused for other data, and what goes wrong names the sample."""

import json
import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import penstock
import pytest

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
ROWS = 1000
MODULE = '''
import os, time
import numpy as np

def odd_sum(row):
    return row["x"].sum() % 2 == 1

def first_ten(row):
    return bool(row["label"] < 10)

def of_picture(row):
    return row["image"].mean() > 127

def nothing(row):
    return False

def no_answer(row):
    pass

def a_number(row):
    return 1

def raises(row):
    if row["label"] == 77:
        raise ValueError("cannot judge this")
    return True

def dies(row):
    if row["label"] == 77:
        os._exit(3)
    return True

def slow(row):
    time.sleep(0.5)
    return True
'''


@pytest.fixture
def data(tmp_path, monkeypatch):
    rng = np.random.default_rng(1)
    x = rng.integers(0, 100, (ROWS, 3))
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "label.npy", np.arange(ROWS))
    (tmp_path / "rules.py").write_text(MODULE)
    monkeypatch.setenv("PENSTOCK_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return x


SOURCE = {"npy": {"features": {"x": "x.npy", "label": "label.npy"}}}


def judge(folder, function, *arguments, **keys):
    spec = {"dataset": "d", "source": SOURCE, "shuffle": {"seed": 3},
            "batch": {"size": 7}, "epochs": 4, **keys}
    (folder / "spec.yaml").write_text(json.dumps(spec))
    return subprocess.run([PENSTOCK, "filter", "spec.yaml", function, *arguments],
                          cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True,
                          env={**os.environ, "PENSTOCK_PYTHON_PATH": str(folder)})


def labels_of(spec):
    with penstock.broker():
        with penstock.attach(spec, rank=0, world_size=1) as reader:
            return [int(label) for batch in reader for label in batch["label"]]


def test_the_command_keeps_what_the_function_keeps(tmp_path, data):
    done = judge(tmp_path, "rules:odd_sum", "--json")
    assert done.returncode == 0, done.stderr
    wanted = np.flatnonzero(data.sum(1) % 2 == 1).tolist()
    told = json.loads(done.stdout)
    assert told["records"] == told["judged"] == ROWS and told["kept"] == len(wanted)
    spec = {"dataset": "d", "source": SOURCE, "batch": {"size": 64},
            "select": [{"filter": {"records": "kept.records"}}]}
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    assert labels_of("spec.yaml") == wanted
    assert labels_of(penstock.Dataset.from_file("spec.yaml")) == wanted
    # Up to date, also when the spec has the filter already.
    assert "is up to date" in judge(tmp_path, "rules:odd_sum").stdout
    assert "is up to date" in judge(tmp_path, "rules:odd_sum",
                                    select=spec["select"]).stdout
    assert json.loads(judge(tmp_path, "rules:odd_sum", "--force", "--json").stdout)[
        "judged"] == ROWS
    (tmp_path / "rules.py").write_text(MODULE + "\n# changed\n")
    assert "is up to date" not in judge(tmp_path, "rules:odd_sum").stdout


def test_answers_of_other_data_are_refused(tmp_path, data):
    assert judge(tmp_path, "rules:odd_sum").returncode == 0
    check = [PENSTOCK, "check", "spec.yaml"]
    spec = {"dataset": "d", "source": SOURCE, "batch": {"size": 64},
            "select": [{"filter": {"records": "kept.records"}}]}

    def error():
        (tmp_path / "spec.yaml").write_text(json.dumps(spec))
        done = subprocess.run(check, cwd=tmp_path, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
        return done.stderr if done.returncode else ""

    assert error() == ""
    spec["select"].insert(0, {"skip": 1})
    assert "other steps of `select` before it" in error()
    del spec["select"][0]
    np.save(tmp_path / "x.npy", data[1:])
    np.save(tmp_path / "label.npy", np.arange(1, ROWS))
    assert "the data have changed since; run `penstock filter` again" in error()


def test_what_goes_wrong_names_the_sample(tmp_path, data):
    for function, words in (("rules:no_answer", "it returned NoneType; wanted True or"),
                            ("rules:a_number", "it returned int; wanted True or False"),
                            ("rules:raises", "cannot judge this"),
                            ("rules:dies", "ended"),
                            ("rules:gone", "gone"),
                            ("rules:nothing", "keeps none of 1,000 records: nothing is")):
        done = judge(tmp_path, function)
        assert done.returncode == 1 and words in done.stderr, (function, done.stderr)
        if function in ("rules:raises", "rules:dies"):
            assert "sample 77 in " in done.stderr and "x.npy, row 77" in done.stderr
        assert not (tmp_path / "kept.records").exists()
    done = judge(tmp_path, "rules:raises", on_error="skip")
    assert done.returncode == 0 and "999 of 1,000 records kept" in done.stdout
    # Told once, with the whole exception, and not as a step of the spec.
    assert done.stderr.startswith(
        "penstock: left out: 1 record that could not be read or judged:\n"
        "penstock:   dataset 'd': sample 77 in "), done.stderr
    assert ": rules:raises: Traceback" in done.stderr and "map[" not in done.stderr
    assert done.stderr.endswith("\n  | ValueError: cannot judge this\n"), done.stderr
    assert done.stderr.count("sample 77 in ") == 1
    # A fault of the argument is not one of the spec's text.
    for function, message in (
            ("rules", "penstock: FUNCTION: 'rules': wanted MODULE:FUNCTION, such as"),
            ("rules:gone", "penstock: FUNCTION: rules:gone: cannot be loaded:"),
            ("ru-les:odd", 'penstock: FUNCTION: wanted "package.module:function", found')):
        assert judge(tmp_path, function).stderr.startswith(message)
    done = judge(tmp_path, "rules:odd_sum", "--steps", "1",
                 map=[{"cast": {"feature": "none", "dtype": "float32"}}])
    assert done.stderr.startswith("penstock: spec.yaml: map[0].cast: no feature 'none'")
    (tmp_path / "notes.txt").write_text("mine")
    done = judge(tmp_path, "rules:odd_sum", "--out", "notes.txt", "--force")
    assert "is no file of `penstock filter`: name another output" in done.stderr
    assert done.returncode == 1 and (tmp_path / "notes.txt").read_text() == "mine"
    done = judge(tmp_path, "rules:first_ten", "--steps", "2",
                 map=[{"cast": {"feature": "x", "dtype": "float32"}}, {"flip": {}}])
    assert "map[1].flip: is random" in done.stderr and "--steps 1" in done.stderr
    done = judge(tmp_path, "rules:first_ten", "--steps", "1",
                 map=[{"cast": {"feature": "x", "dtype": "float32"}}, {"flip": {}}])
    assert done.returncode == 0, done.stderr
    done = judge(tmp_path, "rules:first_ten", "--out", "/proc/x")
    assert done.returncode == 1 and "/proc/x" in done.stderr
    assert judge(tmp_path, "rules:first_ten", "--steps", "9").returncode == 1


def test_an_interrupt_leaves_nothing(tmp_path, data):
    (tmp_path / "spec.yaml").write_text(json.dumps(
        {"dataset": "d", "source": SOURCE, "batch": {"size": 7}}))
    # A shell has its background jobs ignore SIGINT, and theirs inherit that.
    process = subprocess.Popen(
        ["env", "--default-signal=INT", PENSTOCK, "filter", "spec.yaml", "rules:slow"],
        cwd=tmp_path, stderr=subprocess.PIPE,
        env={**os.environ, "PENSTOCK_PYTHON_PATH": str(tmp_path)})
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    # The latter: before it was ready.
    assert process.returncode in (128 + signal.SIGINT, -signal.SIGINT)
    assert not [name for name in os.listdir(tmp_path) if "kept" in name]


def test_a_function_of_the_program(tmp_path, data):
    least = 200
    asked = tmp_path / "asked"

    def large(row):
        with open(asked, "a") as file:
            file.write(f"{row['label']}\n")
        return row["x"].sum() > least

    dataset = penstock.Dataset.npy({"x": "x.npy", "label": "label.npy"})
    wanted = [i for i in range(ROWS) if data[i].sum() > least]
    filtered = dataset.filter(large)
    assert labels_of(filtered.batch(32)) == wanted
    assert sorted(map(int, asked.read_text().split())) == list(range(ROWS))
    # Asked once for the same data and function, of each record that is left by then.
    assert dataset.filter(large) == filtered
    assert len(asked.read_text().split()) == ROWS
    few = dataset.skip(900).filter(large).filter(lambda row: row["label"] % 2 == 0)
    assert labels_of(few.batch(32)) == [i for i in wanted if i >= 900 and i % 2 == 0]
    assert len(asked.read_text().split()) == ROWS + 100
    least = 250
    wanted = [i for i in range(ROWS) if data[i].sum() > least]
    assert labels_of(dataset.filter(large).batch(32)) == wanted
    # In a part of a mix, and after steps of map.
    parts = [dataset.filter(lambda row: row["label"] < 10),
             dataset.filter(lambda row: row["label"] >= 990)]
    mixed = penstock.Dataset.mix(parts)
    assert sorted(labels_of(mixed.batch(5))) == [*range(10), *range(990, 1000)]
    mapped = dataset.map(penstock.cast("float32", feature="x")).filter(
        lambda row: row["x"].dtype == np.float32 and row["label"] < 3)
    assert labels_of(mapped.batch(5)) == [0, 1, 2]


def test_errors_of_a_function_of_the_program(tmp_path, data):
    dataset = penstock.Dataset.npy({"x": "x.npy", "label": "label.npy"})

    def raises(row):
        return {}[int(row["label"]) - 5]

    with pytest.raises(penstock.DataLoss, match="(?s)x.npy, row 5 .*KeyError"):
        dataset.skip(5).take(1).filter(raises)
    with pytest.raises(penstock.DataLoss, match="all of the first .* were skipped"):
        dataset.skip(5).on_error("skip").filter(raises)

    def some(row):
        return bool({0: True}[int(row["label"]) % 2])

    with pytest.warns(UserWarning, match="50 records could not be read or judged"):
        even = dataset.skip(900).on_error("skip").filter(some)
    assert labels_of(even.batch(9)) == list(range(900, 1000, 2))
    with pytest.raises(TypeError, match="cannot be pickled"):
        lock = threading.Lock()
        dataset.filter(lambda row: lock)
    with pytest.raises(TypeError, match="wanted one of"):
        dataset.filter()
    with pytest.raises(TypeError, match="are of a column"):
        dataset.filter(raises, min=3)
    with pytest.raises(penstock.InvalidArgument, match="is random"):
        dataset.map(penstock.flip(feature="x")).filter(raises)
