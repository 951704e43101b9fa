"""`source: python`: any map-style dataset is delivered as it is, in the plan's order,
whatever its samples hold; what its code does is told of the sample and costs nobody
else a row."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import numpy as np
import penstock
import pytest

MODULE = '''
import os
import random
import sys
import threading
import time
from typing import NamedTuple
import numpy as np


class Squares:
    """Samples (x, y)."""

    def __init__(self, count=20, **options):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        if not 0 <= i < 20:
            raise IndexError(f"no sample {i}")
        return np.full((2, 3), i, np.float32), i * i


class Many(Squares):
    def __getitem__(self, i):
        time.sleep(0.0005)
        return i, i * i


class Nested(Squares):
    def __getitem__(self, i):
        return {"id": i, "half": i / 2, "even": i % 2 == 0, "text": "né" * (i % 3),
                "pair": [np.uint16([i, 60000]), (np.arange(i, i + 2),)]}


class Point(NamedTuple):
    x: int
    y: int


class Points(Squares):
    def __getitem__(self, i):
        return Point(i, {"z": -i})


class Pictures(Squares):
    def __init__(self, path):
        super().__init__()
        with open(path, "rb") as file:
            self.jpeg = file.read()

    def __getitem__(self, i):
        return {"image": self.jpeg + bytes(i * 50000), "label": i}


class Random(Squares):
    def __getitem__(self, i):
        return random.random(), np.random.rand(2), i


class Batched(Squares):
    calls = 0

    def __getitems__(self, indices):
        Batched.calls += 1
        return [(np.full((2, 3), i, np.float32), Batched.calls) for i in indices]


class Lists(Squares):
    def __getitem__(self, i):
        return {"tokens": np.full(7 * i % 13, i, np.int32), "label": i % 3}


class Faulty(Squares):
    def __init__(self, fault):
        super().__init__()
        self.fault = fault

    def __getitem__(self, i):
        if i == 7:
            getattr(self, self.fault)()
        if i == 7 and self.fault == "shape":
            return np.zeros((3, 3), np.float32), 1
        if i == 7 and self.fault == "fraction":
            return np.zeros((2, 3), np.float32), 0.5
        if i == 7 and self.fault == "large":
            return np.zeros((2, 3), np.float32), 1 << 63
        if i == 7 and self.fault == "lacks":
            return np.zeros((2, 3), np.float32),
        return super().__getitem__(i)

    def shape(self):
        pass

    fraction = lacks = large = shape

    def raises(self):
        raise ValueError("seven is not wanted")

    def exits(self):
        sys.exit("it exits")

    def ends(self):
        os._exit(3)

    def hangs(self):
        time.sleep(1000)

    def prints(self):
        print("seven says so")

    def forks(self):
        if os.fork() == 0:
            time.sleep(1000)

    def threads(self):
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()


class Leaky(Squares):
    kept = []

    def __getitem__(self, i):
        time.sleep(0.02)
        self.kept.append(np.ones(40 << 20, np.uint8))  # 40 MiB
        return os.getpid(), len(self.kept)


class Once(Squares):
    """Ends its process the first time that it is asked for 7."""

    def __init__(self, path):
        super().__init__()
        self.path = path

    def __getitem__(self, i):
        if i == 7 and not os.path.exists(self.path):
            open(self.path, "w").close()
            os._exit(9)
        return super().__getitem__(i)


class Counts(Squares):
    """Says any length."""

    def __len__(self):
        if self.count is None:
            raise OSError("no file to count")
        return self.count


def empty():
    return []


def a_number():
    return 5


def stream():
    return iter([1, 2])


def odd_sample():
    return [object()]


def complex_sample():
    return [np.zeros(3, np.complex64)]


def dates():
    return np.zeros(3, "M8[s]")
'''


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    folder = tmp_path_factory.mktemp("datasets")
    module = folder / "sets.py"
    module.write_text(MODULE)
    module.chmod(0o644)  # whatever the umask, as only its owner may write it
    return folder


@pytest.fixture(scope="module")
def broker(modules):
    with penstock.broker(workers=2, python_path=[modules]) as started:
        yield started


def of(factory, **options):
    return penstock.Dataset.python("sets:" + factory, **options)


def test_rows_are_the_samples_in_order(attach):
    reader = attach(of("Squares", names=["x", "y"]).batch(8))
    assert reader.element_spec == {"x": penstock.TensorSpec((2, 3), "float32"),
                                   "y": penstock.TensorSpec((), "int64")}
    rows = [(x[0, 0], y) for batch in reader for x, y in zip(batch["x"], batch["y"])]
    assert rows == [(i, i * i) for i in range(20)]


def test_parts_of_a_mix_may_be_datasets_of_python(attach):
    parts = [of("Squares", names=["x", "y"]),
             of("Squares", args={"count": 5}, names=["x", "y"]).skip(3)]
    reader = attach(penstock.Dataset.mix(parts, [2, 1], when_out="drop").batch(4))
    assert [y for batch in reader for y in batch["y"].tolist()] == [
        0, 1, 9, 4, 9, 16, *(i * i for i in range(4, 20))]


def test_samples_may_be_nested(attach):
    reader = attach(of("Nested").batch(20))
    batch = reader.next()
    assert batch["id"].tolist() == list(range(20))
    assert batch["half"].tolist() == [i / 2 for i in range(20)]
    assert batch["even"].dtype == bool and batch["even"][::2].all()
    assert batch["pair.0"].tolist() == [[i, 60000] for i in range(20)]
    assert batch["pair.1.0"].tolist() == [[i, i + 1] for i in range(20)]
    for i, (row, size) in enumerate(zip(batch["text"], batch["text_bytes"])):
        assert bytes(row[:size]).decode() == "né" * (i % 3)
        assert not row[size:].any()


def test_fields_of_a_namedtuple_are_names(attach):
    batch = attach(of("Points").batch(20)).next()
    assert batch["x"].tolist() == list(range(20))
    assert batch["y.z"].tolist() == [-i for i in range(20)]


def test_bytes_of_any_size_are_decoded_from_where_they_lie(attach, tmp_path):
    pictures = pytest.importorskip("PIL.Image", reason="no Pillow")
    picture = np.random.default_rng(1).integers(0, 255, (40, 60, 3), dtype="uint8")
    pictures.fromarray(picture).save(tmp_path / "a.jpg")
    dataset = of("Pictures", args={"path": str(tmp_path / "a.jpg")}).map(
        penstock.decode_image(32, exact=True)).batch(20)
    images = attach(dataset).next()["image"]
    assert images.shape == (20, 32, 32, 3)
    assert (images == images[0]).all() and images.std() > 10


def test_random_numbers_follow_from_the_position(attach, request):
    dataset = of("Random", names=["a", "b", "id"]).shuffle(seed=3).repeat(2)

    def rows(size, name):
        reader = attach(dataset.batch(size), job=request.node.name + name)
        return [(batch.epoch, int(i), a, tuple(b)) for batch in reader
                for i, a, b in zip(batch["id"], batch["a"], batch["b"])]

    first = rows(20, "a")
    assert rows(3, "b") == first, "other batches, other claims"
    assert len({row[2:] for row in first}) == 40, "each sample of an epoch has its own"


def test_getitems_is_used_for_rows_that_are_made_together(attach):
    batches = list(attach(of("Batched", names=["x", "calls"]).batch(20)))
    assert batches[0]["x"][:, 0, 0].tolist() == list(range(20))
    calls = batches[0]["calls"].tolist()
    assert max(calls) < 20 and calls.count(1) > 1


@pytest.mark.parametrize("fault, says", [
    ("raises", "ValueError: seven is not wanted"),
    ("exits", "SystemExit: it exits"),
    ("ends", "its process ended with status 3, twice at this sample"),
    ("shape", r"feature 'x' has shape \[3, 3\]; the first sample has \[2, 3\]"),
    ("fraction", "feature 'y' is float64; the first sample has int64 there"),
    ("large", "feature 'y': it has values .*, which do not fit into int64"),
    ("lacks", "is a tuple of 1; the first sample has a list or tuple of 2 there"),
])
def test_a_sample_that_cannot_be_made_is_told_or_skipped(attach, request, fault, says):
    dataset = of("Faulty", args={"fault": fault}, names=["x", "y"]).batch(5)
    ids = []
    with pytest.raises(penstock.Error, match="(?s)" + says) as failure:
        for batch in attach(dataset):
            ids += batch.ids.tolist()
    assert "sample 7" in str(failure.value)
    assert ids == list(range(5)), "the batch before it comes first"
    skipping = attach(dataset.on_error("skip"), job=request.node.name + "skips")
    ids = [i for batch in skipping for i in batch.ids.tolist()]
    assert ids == [i for i in range(20) if i != 7]


@pytest.mark.parametrize("habit", ["prints", "forks", "threads"])
def test_habits_that_harm_nobody(attach, habit):
    reader = attach(of("Faulty", args={"fault": habit}, names=["x", "y"]).batch(20))
    assert reader.next()["y"].tolist() == [i * i for i in range(20)]


def test_a_column_of_the_samples_sorts_and_selects(attach):
    lists = of("Lists", max_length={"tokens": 20})
    reader = attach(lists.filter("label", include=[1]).shuffle(seed=1).batch(
        2, buckets=penstock.buckets("tokens.length", boundaries=[4, 12]),
        last="partial"))
    rows = []
    for batch in reader:
        assert batch["tokens"].shape[1] == [4, 12][batch.part]
        for tokens, length in zip(batch["tokens"], batch.lengths("tokens")):
            rows.append(tokens[:length].tolist())
    assert sorted(rows) == sorted([i] * (7 * i % 13) for i in range(1, 20, 3))


def test_a_sample_that_fails_while_a_column_is_read(attach):
    with pytest.raises(penstock.DataLoss, match=r"(?s)column '1'.*\[7\].*seven is not wanted"):
        attach(of("Faulty", args={"fault": "raises"}).filter("1", include=[1]).batch(2))


def test_a_sample_that_takes_too_long(modules, tmp_path):
    config = tmp_path / "penstockd.yaml"
    config.write_text(f"python_path: {modules}\npython_timeout: 1s\n"
                      f"python: {sys.executable}\n")
    spec = tmp_path / "spec.json"
    spec.write_text(of("Faulty", args={"fault": "hangs"}).batch(5).to_json())
    program = os.path.join(os.path.dirname(penstock.__file__), "bin", "penstockd")
    socket = str(tmp_path / "socket")
    daemon = subprocess.Popen([program, "--config", str(config), "--socket", socket])
    try:
        for _ in range(200):
            if os.path.exists(socket):
                break
            time.sleep(0.05)
        with pytest.raises(penstock.Error, match=r"sample 7 .*took longer than 1.0 s"):
            for batch in penstock.attach(str(spec), socket=socket, timeout_s=60):
                pass
    finally:
        daemon.terminate()
        daemon.wait()


def test_an_own_broker_takes_the_limit_of_a_sample_from_the_environment(
        modules, monkeypatch):
    monkeypatch.setenv("PENSTOCK_PYTHON_TIMEOUT", "1s")
    dataset = of("Faulty", args={"fault": "hangs"}).batch(5)
    with penstock.broker(workers=1, python_path=[modules]) as own:
        with pytest.raises(penstock.Error, match=r"sample 7 .*took longer than 1.0 s"):
            for _ in penstock.attach(dataset, socket=own.socket, timeout_s=60):
                pass


def test_a_process_that_ends_once_costs_no_row(attach, tmp_path):
    dataset = of("Once", args={"path": str(tmp_path / "seen")}, names=["x", "y"])
    reader = attach(dataset.batch(20))
    assert reader.next()["y"].tolist() == [i * i for i in range(20)]
    assert (tmp_path / "seen").exists()


def test_a_process_that_leaks_is_replaced(attach):
    reader = attach(of("Leaky", names=["pid", "kept"], processes=1).batch(5).repeat(6))
    rows = [row for batch in reader for row in zip(batch["pid"], batch["kept"])]
    assert len(rows) == 120
    assert 2 <= len({pid for pid, _ in rows}) <= 5
    assert max(kept for _, kept in rows) < 100  # with a limit of 1, then 2 GiB


def test_a_length_that_lies(attach):
    with pytest.raises(penstock.Error, match=r"(?s)sample 2\d .*IndexError: no sample 2\d"):
        for batch in attach(of("Squares", args={"count": 25}).batch(5)):
            pass


@pytest.mark.parametrize("count, says", [
    (None, "OSError: no file to count"),
    (-1, "ValueError: __len__"),
    (2.5, "TypeError: .*float"),
    (2**60, "more than 9007199254740992 samples"),
])
def test_lengths_that_are_none(attach, count, says):
    with pytest.raises(penstock.InvalidArgument, match="(?s)sets:Counts: .*" + says):
        attach(of("Counts", args={"count": count}).batch(5))


def test_a_length_that_is_too_short(attach):
    rows = [i for batch in attach(of("Squares", args={"count": 7}).batch(5))
            for i in batch.ids.tolist()]
    assert rows == list(range(7))


@pytest.mark.parametrize("factory, says", [
    ("empty", "list is empty: its length is 0"),
    ("a_number", "int has no __getitem__: wanted a map-style dataset"),
    ("stream", "an iterable dataset has no positions .*penstock.producer"),
    ("odd_sample", "feature 'value' is object; wanted arrays, tensors"),
    ("complex_sample", r"feature 'value' has dtype complex64: .*view_as_real"),
    ("dates", r"feature 'value' has dtype datetime64\[s\]: .*astype\('int64'\)"),
    ("missing", "has no attribute 'missing'"),
])
def test_what_is_no_map_style_dataset(attach, factory, says):
    with pytest.raises(penstock.InvalidArgument, match=says):
        attach(of(factory).batch(5))


def test_state_resumes_with_other_ranks(attach, request):
    dataset = of("Random", names=["a", "b", "id"]).shuffle(seed=5).batch(4)
    whole = [(int(i), a) for batch in attach(dataset)
             for i, a in zip(batch["id"], batch["a"])]
    begun = attach(dataset, job=request.node.name + "begun")
    taken = [(int(i), a) for i, a in zip(*map(begun.next().__getitem__, ("id", "a")))]
    state = begun.state_dict()
    name = request.node.name + "rest"
    rest = [attach(dataset, rank, 2, job=name, state=state, local_world_size=2)
            for rank in range(2)]
    for _ in range(4):
        for reader in rest:
            batch = reader.next()
            taken += [(int(i), a) for i, a in zip(batch["id"], batch["a"])]
    assert taken == whole


def processes():
    """Those that make samples of Many, and the one that they are forked from."""
    found = []
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if b"exec(open(5).read())" in command and b"sets:Many" in command:
            found.append(int(process.name))
    return sorted(found)


def test_killed_processes_cost_no_row(attach, broker):
    # Once each: two deaths with one sample in work would be that sample's fault.
    reader = attach(of("Many", args={"count": 2000}, names=["x", "y"]).shuffle(seed=1)
                    .batch(5))
    counts = np.zeros(2000, int)
    kills = 0
    for number, batch in enumerate(reader):
        if number % 20 == 5:
            listed = processes()
            # One of the processes, or the one that they are forked from.
            if listed:  # they may be about to start
                try:
                    os.kill(listed[kills % len(listed)], signal.SIGKILL)
                    kills += 1
                except ProcessLookupError:
                    pass  # its template was killed before
        assert (batch["y"] == batch.ids ** 2).all()
        counts[batch.ids] += 1
    assert (counts == 1).all()
    assert kills > 3


def test_a_service_loads_no_pickles(attach, tmp_path):
    (tmp_path / "a.pickle").write_bytes(b"PENSTOCK" + bytes(100))
    with pytest.raises(penstock.FailedPrecondition,
                       match="loaded only by a private broker, from its own folder"):
        attach(penstock.Dataset.python(object=tmp_path / "a.pickle").batch(1))
