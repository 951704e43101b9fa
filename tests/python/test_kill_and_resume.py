"""A ranged source and a called one, while processes are killed, come late or are
replaced: every sample comes exactly once, in the order of a run that nobody disturbs."""

import io
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tarfile
import threading
import time

import penstock
import pytest

SAMPLES = 120
STEPS = 20  # of an epoch

MODULE = '''
import random


class Numbers:
    def __len__(self):
        return 120

    def __getitem__(self, i):
        return i, random.random()
'''

RANK = """
import json, sys, time
import penstock
spec, rank, ranks, job, log = sys.argv[1:]
with open(log, "a") as out, penstock.attach(
        spec, int(rank), int(ranks), local_world_size=int(ranks), job=job,
        timeout_s=60) as reader:
    for batch in reader:
        print(json.dumps([batch.epoch, batch.step, batch.redelivered,
                          batch["n"].tolist()]), file=out, flush=True)
        time.sleep(0.02)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "counted.py").write_text(MODULE)
    for shard in range(4):
        with tarfile.open(folder / f"{shard}.tar", "w") as tar:
            for n in range(30 * shard, 30 * shard + 30):
                text = str(n).encode()
                info = tarfile.TarInfo(f"{n:04}.cls")
                info.size = len(text)
                tar.addfile(info, io.BytesIO(text))
    return folder


@pytest.fixture(scope="module")
def broker(folder):
    with penstock.broker(workers=2, python_path=[folder]) as started:
        yield started


@pytest.fixture(params=["webdataset", "python"])
def dataset(request, folder):
    source = {
        "webdataset": lambda: penstock.Dataset.webdataset(
            folder / "*.tar", {"n": {"member": "cls", "dtype": "int64", "shape": []}}),
        "python": lambda: penstock.Dataset.python("counted:Numbers", names=["n", "random"]),
    }[request.param]()
    return source.shuffle(seed=7).batch(SAMPLES // STEPS).repeat(2)


@pytest.fixture
def undisturbed(attach, dataset, request):
    """{(epoch, step): rows}"""
    reader = attach(dataset, job="undisturbed-" + request.node.name[:40])
    rows = {(batch.epoch, batch.step): rows_of(batch) for batch in reader}
    for epoch in range(2):
        assert sorted(row[0] for (of, _), step in rows.items() for row in step
                      if of == epoch) == list(range(SAMPLES))
    return rows


def rows_of(batch):
    return list(zip(*(batch[name].tolist() for name in batch)))


def steps_of(readers):
    """(epoch, step), rows of all ranks; until the end of the data."""
    for batches in zip(*readers):
        at, = {(batch.epoch, batch.step) for batch in batches}
        yield at, [row for batch in batches for row in rows_of(batch)]


def kill(*words):
    """Kills the processes whose command lines have all of these words."""
    killed = 0
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            command = (process / "cmdline").read_bytes()
            if all(word.encode() in command for word in words):
                os.kill(int(process.name), signal.SIGKILL)
                killed += 1
        except OSError:  # it has ended
            pass
    return killed


def test_the_broker_is_killed(attach, broker, dataset, undisturbed):
    readers = [attach(dataset, rank, 2, local_world_size=2) for rank in range(2)]
    seen = {}
    for number, (at, rows) in enumerate(steps_of(readers)):
        seen[at] = rows
        if number in (7, STEPS + 3):
            assert kill("penstockd\0", os.path.dirname(broker.socket)) == 1
    assert seen == undisturbed


def test_other_threads_run_while_a_broker_does_not_answer(tmp_path):
    link, silent = tmp_path / "socket", tmp_path / "silent"
    over = threading.Event()
    longest = 0

    def look():
        nonlocal longest
        last = time.monotonic()
        while not over.wait(0.01):
            longest = max(longest, time.monotonic() - last)
            last = time.monotonic()

    with penstock.broker(workers=1) as own, socket.socket(
            socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        link.symlink_to(own.socket)
        reader = penstock.attach(penstock.Dataset.range(16).batch(8), 0, 2, socket=str(link),
                                 local_world_size=2, delivery="broadcast", reconnect_s=2)
        listener.bind(str(silent))
        listener.listen()
        link.unlink()
        link.symlink_to(silent)
        assert kill("penstockd\0", os.path.dirname(own.socket)) == 1
        thread = threading.Thread(target=look)
        thread.start()
        with pytest.raises(penstock.Unavailable):
            reader.next(timeout_s=1)
        over.set()
        thread.join()
    assert longest < 1


@pytest.mark.parametrize("dataset", ["python"], indirect=True)
def test_processes_of_the_dataset_are_killed(attach, dataset, undisturbed):
    seen = {}
    killed = 0
    for number, (at, rows) in enumerate(steps_of([attach(dataset)])):
        seen[at] = rows
        if number % 8 == 3:
            killed += kill("exec(open(5).read())", "counted:Numbers")
    assert seen == undisturbed
    assert killed > 0


def test_a_rank_is_killed_and_replaced_and_one_comes_late(dataset, undisturbed,
                                                          request, tmp_path):
    spec = tmp_path / "spec.json"
    spec.write_text(dataset.to_json())

    def start(rank):
        return subprocess.Popen([sys.executable, "-c", RANK, spec, str(rank), "3",
                                 request.node.name[:40], tmp_path / f"{rank}.log"])

    def wait_for(rank, lines):
        for _ in range(6000):
            log = tmp_path / f"{rank}.log"
            if log.exists() and log.read_bytes().count(b"\n") >= lines:
                return
            time.sleep(0.01)
        pytest.fail(f"rank {rank} stands still")

    ranks = [start(0), start(1)]
    wait_for(0, 1)
    ranks.append(start(2))  # late
    for steps in (5, STEPS):
        wait_for(1, steps)
        ranks[1].kill()
        ranks[1].wait()
        ranks[1] = start(1)
    assert [rank.wait(60) for rank in ranks] == [0, 0, 0]
    seen = {}
    for rank in range(3):
        told = {}
        for line in (tmp_path / f"{rank}.log").read_text().splitlines():
            epoch, step, redelivered, rows = json.loads(line)
            assert told.setdefault((epoch, step), rows) == rows
            assert redelivered or list(told)[-1] == (epoch, step)
        for at, rows in told.items():
            seen.setdefault(at, []).extend(rows)
    assert seen == {at: [row[0] for row in rows] for at, rows in undisturbed.items()}


@pytest.mark.parametrize("ranks", [1, 3])
def test_other_ranks_go_on_in_the_middle_of_an_epoch(attach, dataset, undisturbed,
                                                     request, ranks):
    job = request.node.name[:40]
    first = [attach(dataset, rank, 2, local_world_size=2, job="first-" + job)
             for rank in range(2)]
    seen = {}
    for number, (at, rows) in enumerate(steps_of(first)):
        seen[at] = rows
        if number == STEPS + 6:
            break
    state = json.loads(json.dumps(first[0].state_dict()))
    for reader in first:
        reader.close()
    rest = [attach(dataset, rank, ranks, local_world_size=ranks, state=state,
                   job="rest-" + job) for rank in range(ranks)]
    for at, rows in steps_of(rest):
        assert at not in seen
        seen[at] = rows
    assert seen == undisturbed
