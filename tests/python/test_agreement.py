"""Promise: ranks of several hosts end, all of them, with the first difference of what
their hosts have (a file, a key of the spec, the state) and the hosts' ranks, before any
has a row; those that agree share the rows as one host's would; one that never comes, or
that says nonsense, is named in time; a former launch's answers are not taken for this
one's. By a store of torch.distributed, jax.distributed, MPI and a folder. Method: each
host is a private broker with a folder of files of its own; ranks are threads, and real
processes of torch, JAX and mpirun."""

import concurrent.futures
import errno
import json
import os
import shutil
import socket as sockets
import subprocess
import sys
import textwrap
import threading
import time

import numpy as np
import penstock
import pytest
from penstock import agreement, rendezvous

FILES, ROWS = 150, 4  # more files than the broker tells of at once


@pytest.fixture(scope="module")
def brokers():
    with penstock.broker(workers=1) as one, penstock.broker(workers=1) as other:
        yield one, other


@pytest.fixture
def folders(tmp_path):
    """Of two hosts, with the same files."""
    made = []
    for host in ("a", "b"):
        folder = tmp_path / host / "data"
        folder.mkdir(parents=True)
        for i in range(FILES):
            np.save(folder / f"{i:04}.npy", np.arange(i * ROWS, (i + 1) * ROWS))
        made.append(folder)
    return made


def dataset(folder, size=8, seed=3):
    return penstock.Dataset.npy({"value": str(folder / "*.npy")}).shuffle(seed=seed).batch(size)


class Launch:
    """Four ranks on two hosts, each a thread."""

    def __init__(self, brokers, folders, request, tmp_path):
        self.brokers, self.folders = brokers, folders
        self.job = request.node.name[:60]
        self.agree = f"file:{tmp_path}"

    def attach(self, rank, **options):
        host = rank // 2
        made = options.pop("dataset", dataset)
        made = made(self.folders[host]) if callable(made) else made[host]
        given = {name: value[rank] if isinstance(value, list) else value
                 for name, value in options.items()}
        given = {"agree": self.agree, "job": self.job, "wait_s": 20, **given}
        return penstock.attach(made, rank, 4, local_world_size=2, timeout_s=60,
                               socket=self.brokers[host].socket, **given)

    def run(self, work=lambda reader: None, ranks=range(4), **options):
        """What each rank's work gave, or its error."""
        def one(rank):
            try:
                with self.attach(rank, **options) as reader:
                    return work(reader)
            except Exception as error:
                return error
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            return list(pool.map(one, ranks))

    def failure(self, kind=penstock.errors.FailedPrecondition, ranks=range(4), **options):
        """The text of the error of all ranks."""
        results = self.run(ranks=ranks, **options)
        assert all(type(each) is kind for each in results), results
        texts = {str(each) for each in results}
        assert len(texts) == 1, texts
        return texts.pop()


@pytest.fixture
def launch(brokers, folders, request, tmp_path):
    return Launch(brokers, folders, request, tmp_path)


def rows(reader):
    return [int(value) for batch in reader for value in batch["value"]]


def stores(count=4):
    """A store of torch.distributed, as each rank has it."""
    torch = pytest.importorskip("torch")
    server = torch.distributed.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
    return [server] + [torch.distributed.TCPStore("localhost", server.port, is_master=False)
                       for _ in range(count - 1)]


@pytest.mark.parametrize("by", ["folder", "store"])
def test_hosts_that_agree_share_the_rows(launch, by):
    agree = {"agree": stores()} if by == "store" else {}
    for _ in range(2):  # what the first has left is not taken for the second's
        results = launch.run(rows, **agree)
        assert sorted(sum(results, [])) == list(range(FILES * ROWS))


@pytest.mark.parametrize("by", ["folder", "store"])
def test_a_missing_file_is_named(launch, by):
    (launch.folders[1] / "0077.npy").unlink()
    text = launch.failure(**({"agree": stores()} if by == "store" else {}))
    host = sockets.gethostname()
    assert f"the file '0077.npy' is there on {host} (ranks 0 to 1); missing on {host} " \
           "(ranks 2 to 3)" in text
    assert "150 files" in text and "149 files" in text and "agree=False" in text
    # It is not compared where that is wanted.
    results = launch.run(rows, agree=False)
    assert all(isinstance(each, list) for each in results)


def test_the_size_of_a_file_is_named(launch):
    np.save(launch.folders[0] / "0149.npy", np.arange(ROWS + 1))
    text = launch.failure()
    assert "'0149.npy' has 168 bytes on" in text and "160 bytes on" in text
    assert "(ranks 0 to 1)" in text and "(ranks 2 to 3)" in text


@pytest.mark.parametrize("other,named", [
    (lambda folder: dataset(folder).map(penstock.cast("float32")), "map"),
    (lambda folder: dataset(folder, seed=4), "shuffle.seed: 3 on"),
    (lambda folder: dataset(folder).repeat(7), "epochs"),
    (lambda folder: dataset(folder, 16), "batch.size: 8 on"),
])
def test_a_difference_of_the_spec_is_named(launch, other, named):
    text = launch.failure(dataset=[dataset(launch.folders[0]), other(launch.folders[1])])
    assert text.startswith(f"the hosts disagree. {named}"), text
    assert "Give all ranks the same spec" in text


def test_what_a_host_does_for_itself_may_differ(launch):
    one, other = (dataset(folder) for folder in launch.folders)
    results = launch.run(rows, dataset=[one, other.prefetch(7)])
    assert sorted(sum(results, [])) == list(range(FILES * ROWS))


def test_another_state_is_named(launch):
    states = [{"epoch": 0, "row": 8}] * 2 + [{"epoch": 0, "row": 16}] * 2
    text = launch.failure(state=states)
    assert 'begin.row: 8 on' in text and "16 on" in text and "the same checkpoint" in text


def test_ranks_compare_again_after_a_reset(launch):
    all_have_one = threading.Barrier(4)  # the first reset ends the others' next

    def work(reader):
        next(iter(reader))
        all_have_one.wait(60)
        reader.reset(reader.rank, 4, {"epoch": 0, "row": 8 if reader.rank < 2 else 16}, 2)
    text = [str(each) for each in launch.run(work)]
    assert all("begin.row" in each for each in text), text


def test_where_one_host_cannot_attach_the_others_hear_it_at_once(launch):
    for file in launch.folders[1].iterdir():
        file.unlink()
    begin = time.monotonic()
    results = launch.run()
    assert time.monotonic() - begin < 10
    assert all(isinstance(each, penstock.Error) for each in results)
    assert type(results[2]) is type(results[3]) is penstock.errors.NotFound
    for each in results[:2]:
        assert "rank 2 on" in str(each) or "rank 3 on" in str(each)
        assert "no files match" in str(each) or "NotFound" in str(each) or "*.npy" in str(each)


@pytest.mark.parametrize("by", ["folder", "store"])
@pytest.mark.parametrize("missing", [0, 2])
def test_who_never_comes_is_named(launch, by, missing):
    agree = {"agree": stores()} if by == "store" else {}
    ranks = [rank for rank in range(4) if rank != missing]
    begin = time.monotonic()
    results = launch.run(ranks=ranks, wait_s=1, **agree)
    assert time.monotonic() - begin < 10
    assert {type(each) for each in results} == {penstock.errors.DeadlineExceeded}
    text = " ".join(map(str, results))
    assert ("rank 0 did not answer within 1 s (wait_s)" if missing == 0 else
            f"no answer from rank {missing} within 1 s (wait_s)") in text
    assert text.count("wait_s") == 3


def test_a_store_that_is_gone(launch):
    """That of a process that has ended."""
    pytest.importorskip("torch")
    code = ("import sys, torch.distributed as d\n"
            "s = d.TCPStore('localhost', 0, is_master=True, wait_for_workers=False)\n"
            "print(s.port, flush=True)\nsys.stdin.read()")
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, text=True) as server:
        store = sys.modules["torch"].distributed.TCPStore(
            "localhost", int(server.stdout.readline()), is_master=False)
        server.kill()
    results = launch.run(ranks=[1], agree=store, wait_s=5)
    assert type(results[0]) is penstock.errors.Unavailable, results
    assert "the store of torch.distributed is gone" in str(results[0])


@pytest.mark.parametrize("gone", ["could not attach", "has not come"])
def test_those_that_are_gone_are_not_waited_for(launch, monkeypatch, gone):
    """They will not hear the end: a launcher would kill rank 0 before it tells it."""
    monkeypatch.setattr(rendezvous, "_SETTLE_S", 60)
    begin = time.monotonic()
    if gone == "could not attach":
        shutil.rmtree(launch.folders[1])
        results = launch.run(agree=stores())
        assert "rank 2 on " in str(results[0])
    else:
        results = launch.run(agree=stores(3) + [None], ranks=range(3), wait_s=1)
        assert "no answer from rank 3" in str(results[0])
    assert time.monotonic() - begin < 40


def test_a_store_keeps_the_keys_of_the_first_and_the_last_rendezvous(launch):
    agree, counts = stores(), []
    for _ in range(3):
        assert launch.run(agree=agree) == [None] * 4
        counts.append(agree[0].num_keys())
    assert counts[2] == counts[1] == 2 * counts[0]


def test_a_client_of_jax_that_is_gone():
    class Client:
        def key_value_set(self, key, value):
            raise RuntimeError("UNAVAILABLE: no coordinator")
        blocking_key_value_get = key_value_set

    for number in range(2):
        with pytest.raises(penstock.errors.Unavailable, match="client: UNAVAILABLE"):
            rendezvous._of_jax(Client(), number, 2, "train").gather(b"", range(2))


def failing_open(monkeypatch, error, times):
    """That each file is opened in vain so often."""
    opened = {}

    def fail(path, mode):
        opened[path] = opened.get(path, 0) + 1
        if mode == "rb" and opened[path] <= times:
            raise OSError(error, os.strerror(error))
        return open(path, mode)
    monkeypatch.setattr(rendezvous, "open", fail, raising=False)
    return opened


def test_files_that_another_host_replaces(launch, monkeypatch):
    """On NFS."""
    failing_open(monkeypatch, errno.ESTALE, 20)  # of the first's reads, too
    assert launch.run() == [None] * 4


def test_a_folder_that_cannot_be_read_is_named(launch, monkeypatch, tmp_path):
    failing_open(monkeypatch, errno.EIO, 1 << 30)
    for each in launch.run(ranks=[1, 0], wait_s=1):
        assert type(each) is penstock.errors.Unavailable
        assert f"{tmp_path}/penstock-" in str(each) and "Input/output error" in str(each)


def test_many_ranks_open_few_files(monkeypatch, tmp_path):
    opened = failing_open(monkeypatch, 0, 0)
    folder = rendezvous.Folder(0, 1024, str(tmp_path), "many")
    folder.until = time.monotonic() + 0.3
    with pytest.raises(rendezvous.Missing):
        folder.gather(b"", range(1024))
    assert sum(opened.values()) < 1024
    pauses = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    folder._pause(time.monotonic() - 100)
    assert pauses == [0.05 * 1024 / 32]


def test_two_jobs_of_one_name_are_told(launch, tmp_path):
    """Of a folder: two first ranks."""
    results = launch.run(ranks=[0], wait_s=3)
    assert "no answer from" in str(results[0])
    folder = rendezvous.Folder(0, 2, str(tmp_path), "run")
    folder.until = time.monotonic() + 20
    errors = []

    def gather():
        try:
            folder.gather(b"{}", range(2))
        except penstock.Error as error:
            errors.append(str(error))
    thread = threading.Thread(target=gather)
    thread.start()
    while folder._here is None:
        time.sleep(0.001)
    another = rendezvous.Folder(0, 2, str(tmp_path), "run")
    another._name = folder._name  # the first of its process, too
    another._begin()
    thread.join()
    assert "another job named 'run'" in errors[0]


def test_bad_arguments(launch, tmp_path, monkeypatch):
    def error(agree):
        results = launch.run(ranks=[1], agree=agree, wait_s=1)
        return f"{type(results[0]).__name__}: {results[0]}"

    assert "there is no such folder on" in error(f"file:{tmp_path}/none")
    assert "wanted 'file:' and an absolute path" in error("file:somewhere")
    assert "wanted 'file:' and an absolute path" in error("redis://host")
    assert error(3).startswith("TypeError: agree: wanted")
    assert "not initialised" in error(True)
    monkeypatch.setenv("PENSTOCK_AGREE", "fle:/x")
    assert "agree='fle:/x'" in error(None)
    monkeypatch.setenv("PENSTOCK_AGREE", "off")
    assert error(None) == "NoneType: None"
    monkeypatch.setenv("PENSTOCK_AGREE", f"file:{tmp_path}")
    assert "wait_s" in error(None)
    monkeypatch.delenv("PENSTOCK_AGREE")


def test_ranks_that_have_nothing_to_meet_by_warn_once(launch, monkeypatch):
    for name in ("torch.distributed", "jax", "mpi4py.MPI"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.warns(UserWarning, match="have not compared") as seen:
        for rank in range(4):
            launch.attach(rank, agree=None).close()
    assert len(seen) == 1


def test_one_host_meets_nobody(broker, folders, monkeypatch):
    monkeypatch.setattr(rendezvous, "find", lambda *_: pytest.fail("a rendezvous"))
    monkeypatch.setenv("PENSTOCK_AGREE", "file:/nowhere")
    for rank in range(2):
        penstock.attach(dataset(folders[0]), rank, 2, local_world_size=2, job="alone",
                        socket=broker.socket).close()


def test_the_fingerprint(broker, folders):
    def of(folder, **options):
        with penstock.attach(dataset(folder), 0, 2, local_world_size=2, socket=broker.socket,
                             job=str(folder), **options) as reader:
            return reader.fingerprint, reader._core.fingerprint

    parts, _ = of(folders[0])
    assert parts == of(folders[1])[0]
    assert parts["world_size"] == "2" and parts["penstock"] == penstock.__version__
    assert json.loads(parts["begin"]) == {"epoch": 0, "row": 0}
    assert len(json.dumps(parts)) < 2000
    with penstock.attach(dataset(folders[0]), socket=broker.socket, job="parts") as reader:
        ask = reader._core.fingerprint
        few = json.loads(ask("files 64 64"))
        assert few["files"] == FILES
        assert few["names"][0] == ["0064.npy", 160] and len(few["names"]) == 64
        shares = json.loads(ask("files 0 4096"))["digests"]
        assert len(shares) == len(set(shares)) == 3  # of 64 files
        assert json.loads(ask("shuffle"))["text"].startswith("{")
        for bad in ("files", "files 0 0", "files -1 5", "files 0 64 1", "nothing", "files 1 x"):
            with pytest.raises(penstock.errors.InvalidArgument, match="no part"):
                ask(bad)


# ---- what others say is not trusted

class Lying:
    """The other process of a rendezvous, which says anything."""

    def __init__(self, *values):
        self.values, self.kept = list(values), {}

    def put(self, key, value):
        self.kept[key] = value

    def take(self, keys, seconds):
        return [self.kept.get(key) or (self.values.pop(0) if self.values else None)
                for key in keys]


def hello(**value):
    return json.dumps({"host": "other", "digest": "x", **value}).encode()


@pytest.mark.parametrize("values", [
    [b""], [b"\xff\xfe"], [b"[" * 100_000], [b"x" * 10_000_000], [b"null"], [b"3"],
    [hello(host=5)], [hello(), b""], [hello(), b"[[]]"], [hello(), b'{"a": 1}'],
    [hello(), b'[["data", "z"]]'], [hello(), b'[["data", "z"]]', b'{"digests": [1, {}]}'],
    [hello(), b'[["data", "z"]]', b'{"digests": ["q"], "files": "many"}',
     b'{"names": [[1], 2]}'],
    [hello(host="\x1b[31m" * 100)], [hello(error={"a": "\x1b"})],
    [hello(moved=True, old=[])], [hello(digest=["x"] * 1000)],
])
def test_a_process_that_lies_ends_the_rendezvous_with_an_error(broker, folders, values):
    with penstock.attach(dataset(folders[0]), socket=broker.socket, job="honest") as reader:
        lying = Lying(*values)
        honest = rendezvous.Stored(0, 2, "lie", lying.put, lying.take)
        with pytest.raises(penstock.Error) as error:
            agreement.compare(honest, reader._core, "", 0.3)
    text = str(error.value)
    assert len(text) < 4000 and text.isprintable(), text
    # Those who wait for process 0 hear it, too.
    told = json.loads(list(lying.kept.values())[-1])
    assert told["end"] == text


@pytest.mark.parametrize("told", [
    b"", b"null", b"[]", b'{"ask": 5, "of": 7}', b'{"ask": "files 0 64", "of": [1]}',
    b'{"ask": "\\u0000", "of": [1]}', b"{" * 1000])
def test_a_first_process_that_lies(broker, folders, told):
    with penstock.attach(dataset(folders[0]), socket=broker.socket, job="honest") as reader:
        lying = Lying(*[told] * 100)
        honest = rendezvous.Stored(1, 2, "lie", lying.put, lying.take)
        with pytest.raises(penstock.Error, match="process 0"):
            agreement.compare(honest, reader._core, "", 0.3)


@pytest.mark.parametrize("value", [[float("nan"), 0], [0, 1.5], [0, 1 << 63], [10 ** 400, 0]])
def test_a_process_that_lies_about_rows(monkeypatch, value):
    monkeypatch.setattr(rendezvous, "_SETTLE_S", 0)

    class Core:
        def first_free_row(self):
            return 0, 8

    lying = Lying(hello(free=value))
    honest = rendezvous.Stored(0, 2, "lie", lying.put, lying.take)
    with pytest.raises(penstock.errors.FailedPrecondition, match="rank 1 is of another") as error:
        agreement.agree_on_weights(honest, Core(), [1.0], 0.3)
    assert json.loads(lying.kept["lie/1/all"])["end"] == str(error.value)


def test_whatever_ends_the_first_process_the_others_hear_it(broker, folders, monkeypatch):
    def fail(hellos, ask):
        raise ZeroDivisionError("what nobody has thought of")
    monkeypatch.setattr(agreement, "_first_difference", fail)
    with penstock.attach(dataset(folders[0]), socket=broker.socket, job="honest") as reader:
        lying = Lying(hello())
        honest = rendezvous.Stored(0, 2, "lie", lying.put, lying.take)
        monkeypatch.setattr(rendezvous, "_SETTLE_S", 0)
        with pytest.raises(ZeroDivisionError):
            agreement.compare(honest, reader._core, "", 0.3)
    assert "what nobody has thought of" in json.loads(lying.kept["lie/1/all"])["end"]


# ---- weights

def mixed(_):
    parts = [penstock.Dataset.range(0, 400), penstock.Dataset.range(1000, 1500)]
    return penstock.Dataset.mix(parts, [1, 1]).shuffle(seed=5).batch(8).steps_per_epoch(80)


@pytest.mark.parametrize("by", ["folder", "store"])
def test_all_hosts_change_weights_at_one_row(launch, by):
    changed = {}

    def work(reader):
        taken = []
        for batch in reader:
            taken.append([int(value) for value in batch["value"]])
            # One host is some steps ahead of the other: what it has made is not changed.
            if len(taken) == 5 + 2 * (reader.rank // 2):
                changed[reader.rank] = reader.set_weights([0, 1] if reader.rank == 1 else None)
        return taken, reader.state_dict()["weights"]

    results = launch.run(work, dataset=mixed, **({"agree": stores()} if by == "store" else {}))
    assert all(isinstance(each, tuple) for each in results), results
    assert len(set(changed.values())) == 1 and len(changed) == 4
    epoch, row = changed[0]
    assert epoch == 0 and 7 * 8 <= row < 40 * 8
    assert [state for _, state in results] == [[[0, row, 0, 1]]] * 4
    with penstock.attach(mixed(None), socket=launch.brokers[0].socket, job="alone",
                         rank=0, world_size=1) as reader:
        reader.set_weights([0, 1], epoch=0, row=row)
        alone = [[int(value) for value in batch["value"]] for batch in reader]
    assert [sum((taken[step] for taken, _ in results), []) for step in range(80)] == alone
    assert any(value < 400 for value in alone[0])


@pytest.mark.parametrize("proposals,named", [
    ([None] * 4, "no rank proposes any"),
    ([[1, 2], [1, 2], [1, 2], [1, 3]], "rank 0 proposes [1.0, 2.0]; rank 3 proposes [1.0, 3.0]"),
    ([[1, 2, 3]] * 4, "weights"), ([[0, 0]] * 4, "all weights are 0")])
def test_weights_that_cannot_be_change_nothing(launch, proposals, named):
    def work(reader):
        try:
            reader.set_weights(proposals[reader.rank])
        except penstock.Error as error:
            assert "weights" not in reader.state_dict(), reader.state_dict()
            return str(error)

    results = launch.run(work, dataset=mixed)
    assert all(named in str(each) for each in results), results


def test_weights_of_hosts_that_cannot_meet(launch):
    results = launch.run(lambda reader: reader.set_weights([1, 3]), dataset=mixed, agree=False)
    assert all("nothing to agree by" in str(each) for each in results), results


# ---- a launch that has gone on on one host alone

RANK = """
import os, sys, json, time
rank = int(os.environ["RANK"])
import torch.distributed as dist
import penstock
dist.init_process_group("gloo")
steps = int(sys.argv[2])
try:
    with penstock.attach(sys.argv[1], local_world_size=1, wait_s=20) as reader:
        rows = []
        dist.barrier()  # rank 0 has the store
        for batch in reader:
            rows += [int(value) for value in batch["value"]]
            if len(rows) == steps * batch.rows:
                os._exit(9)
    print(json.dumps(rows), flush=True)
except penstock.Error as error:
    print(json.dumps(str(error)), flush=True)
os._exit(0)  # a thread of Gloo's may abort an orderly end
"""


def free_port():
    with sockets.socket() as one:
        one.bind(("localhost", 0))
        return one.getsockname()[1]


def torch_ranks(tmp_path, brokers, folders, steps=-1, job="torch"):
    """Two processes of torch.distributed, each on a host of its own."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    port, running = free_port(), []
    for rank, (broker, folder) in enumerate(zip(brokers, folders)):
        spec = folder.parent / "train.yaml"
        spec.write_text(f"dataset: train\nsource: {{npy: {{features: {{value: {folder}/*.npy}}}}}}\n"
                        "shuffle: {seed: 3}\nbatch: {size: 8}\n")
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0",
                       "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "localhost",
                       "MASTER_PORT": str(port), "PENSTOCK_SOCKET": broker.socket,
                       "PENSTOCK_JOB": job}
        running.append(subprocess.Popen([sys.executable, script, spec, str(steps)],
                                        env=environment, stdout=subprocess.PIPE, text=True))
    return [json.loads(out) if (out := process.communicate(timeout=120)[0]) else None
            for process in running]


def test_processes_of_torch_meet_by_themselves(tmp_path, brokers, folders):
    pytest.importorskip("torch")
    results = torch_ranks(tmp_path, brokers, folders)
    assert sorted(sum(results, [])) == list(range(FILES * ROWS))
    (folders[1] / "0003.npy").unlink()
    results = torch_ranks(tmp_path, brokers, folders, job="differ")
    assert "'0003.npy' is there on" in results[0] and results[0] == results[1]


def test_a_host_that_begins_where_another_goes_on_is_refused(tmp_path, brokers, folders):
    pytest.importorskip("torch")
    assert torch_ranks(tmp_path, brokers, folders, steps=3) == [None, None]
    # Both brokers know the job: its ranks get what was left.
    results = torch_ranks(tmp_path, brokers, folders, steps=2)
    assert results == [None, None]
    with penstock.broker(workers=1) as fresh:
        results = torch_ranks(tmp_path, (brokers[0], fresh), folders)
    assert "goes on from an earlier launch" in results[0] and results[0] == results[1]
    assert "(rank 0)" in results[0] and "(rank 1)" in results[0]


JAX = """
import json, os, sys
import jax
rank = int(sys.argv[1])
jax.distributed.initialize(f"localhost:{sys.argv[2]}", 2, rank)
import penstock
try:
    with penstock.attach(sys.argv[3], rank, 2, local_world_size=1, wait_s=30) as reader:
        rows = [int(value) for batch in reader for value in batch["value"]]
    for job in ("b", "c"):
        penstock.attach(sys.argv[3], rank, 2, local_world_size=1, wait_s=30, job=job).close()
    client = jax._src.distributed.global_state.client
    kept = client.key_value_dir_get("penstock/") if rank else []
    assert len(kept) <= 4, kept  # those of the first and the last of 3
    print(json.dumps(rows))
except penstock.Error as error:
    print(json.dumps(str(error)))
"""


def test_processes_of_jax_meet_by_themselves(tmp_path, brokers, folders):
    pytest.importorskip("jax")
    script = tmp_path / "rank.py"
    script.write_text(JAX)

    def run():
        port, running = free_port(), []
        for rank, (broker, folder) in enumerate(zip(brokers, folders)):
            spec = folder.parent / "train.yaml"
            spec.write_text(f"dataset: train\nsource: {{npy: {{features: {{value: {folder}/*.npy}}}}}}\n"
                            "batch: {size: 8}\n")
            running.append(subprocess.Popen(
                [sys.executable, script, str(rank), str(port), spec],
                env={**os.environ, "JAX_PLATFORMS": "cpu", "PENSTOCK_SOCKET": broker.socket},
                stdout=subprocess.PIPE, text=True))
        return [json.loads(process.communicate(timeout=120)[0]) for process in running]

    assert sorted(sum(run(), [])) == list(range(FILES * ROWS))
    (folders[0] / "0140.npy").unlink()
    results = run()
    assert "'0140.npy' is missing on" in results[0] or "'0140.npy' is there" in results[0]
    assert results[0] == results[1]


MPI = """
import json, sys
from mpi4py import MPI
import penstock
rank = MPI.COMM_WORLD.Get_rank()
host = rank // 2
spec, socket = sys.argv[1 + host], sys.argv[3 + host]
try:
    with penstock.attach(spec, rank, 4, local_world_size=2, socket=socket, wait_s=30) as reader:
        told = [int(value) for batch in reader for value in batch["value"]]
except penstock.Error as error:
    told = str(error)
with open(f"{sys.argv[5]}/{rank}", "w") as file:
    json.dump(told, file)
"""


def test_processes_of_mpirun_meet_by_themselves(tmp_path, brokers, folders):
    pytest.importorskip("mpi4py")
    if shutil.which("mpirun") is None:
        pytest.skip("no mpirun")
    script = tmp_path / "rank.py"
    script.write_text(MPI)
    specs = []
    for folder in folders:
        specs.append(folder.parent / "train.yaml")
        specs[-1].write_text(f"dataset: train\nsource: {{npy: {{features: {{value: {folder}/*.npy}}}}}}\n"
                             "batch: {size: 8}\n")

    def run(name):
        out = tmp_path / name
        out.mkdir()
        root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        done = subprocess.run(
            ["mpirun", *root, "--oversubscribe", "-np", "4", sys.executable, script, *specs,
             *(broker.socket for broker in brokers), out], timeout=120, capture_output=True,
            text=True, env={**os.environ, "OMPI_MCA_mpi_yield_when_idle": "1",
                            "OMPI_MCA_btl_vader_single_copy_mechanism": "none",
                            "PENSTOCK_JOB": name})
        assert done.returncode == 0, done.stderr
        return [json.loads((out / str(rank)).read_text()) for rank in range(4)]

    assert sorted(sum(run("agree"), [])) == list(range(FILES * ROWS))
    (folders[1] / "0000.npy").unlink()
    results = run("differ")
    assert "'0000.npy' is there on" in results[0] and len(set(results)) == 1


class Sent:
    """A request of MPI."""
    done = False

    def Test(self):
        return self.done


class Mpi:
    """What is used of mpi4py, and a communicator of it, in one process."""
    ANY_SOURCE, BYTE = -1, "byte"

    class Request:
        @staticmethod
        def Testall(requests):
            return all(each.Test() for each in requests)

    class Status:
        def Get_source(self):
            return self.message[0]

        def Get_count(self, _):
            return len(self.message[3])

    def __init__(self, rank, network):
        self.rank, self.network = rank, network

    def Get_rank(self):
        return self.rank

    def Get_size(self):
        return 2

    def Isend(self, value, dest, tag):
        self.network.append((self.rank, dest, tag, value[0]))
        return Sent()

    def Iprobe(self, source, tag, status=None):
        for each in self.network:
            if each[0] in (source, 1 - self.rank) and each[1:3] == (self.rank, tag):
                if status:
                    status.message = each
                return True
        return False

    def Recv(self, value, source, tag):
        each = next(each for each in self.network if each[:3] == (source, self.rank, tag))
        value[0][:] = each[3]
        self.network.remove(each)


def test_a_late_message_of_mpi_is_not_taken_for_the_next_ones(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", Mpi)
    network = []
    first, second = (Mpi(rank, network) for rank in range(2))
    failed = rendezvous.Mpi(first)
    with pytest.raises(rendezvous.Missing):
        failed.gather(b"", range(2))
    failed.broadcast(b"nobody hears it in time")
    rendezvous.Mpi(second).post_and_leave(b"late")
    one, other = rendezvous.Mpi(first), rendezvous.Mpi(second)
    other.gather(b"in time", range(2))
    assert one.gather(b"own", range(2)) == {0: b"own", 1: b"in time"}
    one.broadcast(b"answer")
    assert other.broadcast(b"") == b"answer"


def test_mpi_reads_a_message_until_it_is_sent(monkeypatch):
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", Mpi)
    network = []
    rendezvous.Mpi(Mpi(0, network)).broadcast(b"not sent in time")
    sent = [each for each, buffer in rendezvous._under_way if buffer is network[0][3]]
    assert len(sent) == 1
    sent[0].done = True
    rendezvous.Mpi(Mpi(0, network)).broadcast(b"another")
    assert not [each for each, buffer in rendezvous._under_way if buffer is network[0][3]]


def test_the_ranks_of_horovod_meet(launch):
    """By a module that does what its two functions do."""
    class Module:
        barrier = threading.Barrier(4)
        told = [None] * 4

        def __init__(self, number):
            self.number = number

        def rank(self):
            return self.number

        def size(self):
            return 4

        def allgather_object(self, value):
            self.told[self.number] = value
            self.barrier.wait(20)
            told = list(self.told)
            self.barrier.wait(20)
            return told

        def broadcast_object(self, value, root_rank):
            return self.allgather_object(value)[root_rank]

    modules = [Module(rank) for rank in range(4)]
    assert sorted(sum(launch.run(rows, agree=modules), [])) == list(range(FILES * ROWS))
    (launch.folders[0] / "0099.npy").unlink()
    assert "'0099.npy' is" in launch.failure(agree=modules)
