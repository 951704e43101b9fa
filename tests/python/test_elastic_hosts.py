"""Promise: when a host dies, with its broker and all its ranks, the launcher's restart of
those that are left (torchrun, min:max nodes) begins at the checkpoint, with another
number of ranks: after all no row of the training that counts was lost or came twice.
Method: two agents of torchrun with a broker each stand for two hosts; ranks write down
the rows of each step; one agent, its ranks and its broker are killed."""

import json
import os
import signal
import socket as sockets
import subprocess
import sys
import time

import penstock
import pytest

pytest.importorskip("torch")

ROWS, SIZE, SAVE_EVERY = 960, 16, 4

RANK = """
import datetime, json, os, pathlib, sys, time
import torch
import torch.distributed as dist
import penstock

folder = pathlib.Path(sys.argv[1])
rows = int(sys.argv[2])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=60))
checkpoint = folder / "checkpoint.json"
saved = json.loads(checkpoint.read_text()) if checkpoint.exists() else {}
step, total = saved.get("step", 0), saved.get("total", 0)
data = penstock.Dataset.range(rows).shuffle(seed=11).batch(int(sys.argv[3]))
attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
log = open(folder / f"log-{attempt}-{dist.get_rank()}", "a", buffering=1)
with penstock.attach(data, state=saved.get("loader") or {"epoch": 0, "row": 0},
                     wait_s=30) as reader:
    for batch in reader:
        values = [int(value) for value in batch["value"]]
        log.write(json.dumps([step, reader.world_size, values]) + "\\n")
        sums = torch.tensor(float(sum(values)))
        dist.all_reduce(sums)  # fails when a rank has died
        total += sums.item()
        step += 1
        if dist.get_rank() == 0 and step % int(sys.argv[4]) == 0:
            part = folder / "checkpoint.part"
            part.write_text(json.dumps({"step": step, "total": total,
                                        "loader": reader.state_dict()}))
            os.replace(part, checkpoint)
        time.sleep(0.1)
if dist.get_rank() == 0:
    (folder / "done").write_text(json.dumps([step, total, dist.get_world_size()]))
os._exit(0)
"""


def start_agent(folder, port, socket, first):
    """Of one host; the first has the store of the rendezvous."""
    return subprocess.Popen(
        [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node",
         "2", "--max-restarts", "6", "--monitor-interval", "0.2", "--rdzv-backend", "c10d",
         "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "elastic", "--rdzv-conf",
         "last_call_timeout=8,keep_alive_interval=1,keep_alive_max_attempt=2,read_timeout=20,"
         f"is_host={int(first)}",
         str(folder / "rank.py"), str(folder), str(ROWS), str(SIZE), str(SAVE_EVERY)],
        env={**os.environ, "PENSTOCK_SOCKET": socket, "OMP_NUM_THREADS": "1"},
        start_new_session=True)


def kill_session(leader):
    """The agent and its ranks, which are leaders of sessions of their own."""
    children = subprocess.run(["ps", "-o", "pid=", "--ppid", str(leader)], stdout=subprocess.PIPE,
                              text=True).stdout.split()
    for pid in [leader, *map(int, children)]:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def logged(folder):
    """By step, what its last attempt took: the ranks' world sizes and rows."""
    taken = {}
    for path in folder.glob("log-*"):
        attempt = int(path.name.split("-")[1])
        for line in path.read_text().splitlines():
            try:
                step, ranks, rows = json.loads(line)
            except ValueError:  # killed while it wrote
                continue
            taken.setdefault(step, {}).setdefault(attempt, []).append((ranks, rows))
    return {step: of[max(of)] for step, of in taken.items()}


def wait_until(is_true, seconds, *agents):
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, "too late"
        time.sleep(0.1)


def test_the_rest_goes_on_from_the_checkpoint(tmp_path):
    (tmp_path / "rank.py").write_text(RANK)
    with sockets.socket() as one:
        one.bind(("localhost", 0))
        port = one.getsockname()[1]
    with penstock.broker(workers=1) as host_a:
        host_b = penstock.broker(workers=1)
        agents = []
        try:
            agents.append(start_agent(tmp_path, port, host_a.socket, True))
            agents.append(start_agent(tmp_path, port, host_b.socket, False))
            wait_until((tmp_path / "checkpoint.json").exists, 300)
            before = logged(tmp_path)
            # All four ranks share each step.
            assert {ranks for of in before.values() for ranks, _ in of} == {4}
            kill_session(agents[1].pid)
            host_b.stop()
            wait_until((tmp_path / "done").exists, 400)
            assert agents[0].wait(60) == 0
        finally:
            for agent in agents:
                kill_session(agent.pid)
            host_b.stop()
    step, total, world = json.loads((tmp_path / "done").read_text())
    assert (step, total, world) == (ROWS // SIZE, sum(range(ROWS)), 2)
    taken = logged(tmp_path)
    assert sorted(taken) == list(range(ROWS // SIZE))
    rows = [row for of in taken.values() for _, values in of for row in values]
    assert sorted(rows) == list(range(ROWS))
    # Both worlds took part, and the steps are those of one host alone.
    assert {len(of) for of in taken.values()} == {4, 2}
    with penstock.broker(workers=1) as alone:
        data = penstock.Dataset.range(ROWS).shuffle(seed=11).batch(SIZE)
        with penstock.attach(data, 0, 1, socket=alone.socket) as reader:
            for step, batch in enumerate(reader):
                assert sorted(row for _, values in taken[step] for row in values) == sorted(
                    map(int, batch["value"]))
