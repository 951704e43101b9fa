"""Ranks of penstock.torch.DataLoader come late, are killed and replaced, and the
processes that make batches are killed: each sample comes once for all ranks. Of batches
as units (collate_fn, batch_sampler) and of an iterable dataset. Method: ranks are
processes that write down each batch before they take the next."""

import collections
import contextlib
import os
import signal
import socket as sockets
import subprocess
import sys
import time

import pytest

torch = pytest.importorskip("torch")
from penstock import torch_ranks  # noqa: E402

ROWS, SIZE, RANKS = 601, 5, 3
GATE_AT = 5  # batches, after which a rank waits for the file "gate"

SCRIPT = """
import os, sys, time
import torch
from torch.utils import data
import penstock.torch

kind, log = sys.argv[1:3]
rows, size, gate_at = map(int, sys.argv[3:])


def sample(i):
    with open(log + ".made", "a") as file:
        file.write(f"{os.getpid()}\\n")
    return torch.full((i % 7 + 1,), i)


class Rows(data.Dataset):
    def __len__(self):
        return rows

    def __getitem__(self, i):
        return sample(i)


class Stream(data.IterableDataset):
    def __iter__(self):
        worker = data.get_worker_info()
        return map(sample, range(worker.id, rows, worker.num_workers))


def lists(samples):
    return {"ids": [int(each[0]) for each in samples], "tokens": samples}


options = {
    "collate_fn": lambda: dict(dataset=Rows(), batch_size=size, shuffle=True),
    "batch_sampler": lambda: dict(dataset=Rows(), batch_sampler=[
        list(range(i, min(i + size, rows))) for i in range(0, rows, size)]),
    "iterable": lambda: dict(dataset=Stream(), batch_size=size),
}[kind]()
loader = penstock.torch.DataLoader(collate_fn=lists, num_workers=2, timeout=60, **options)
taken = 0
for batch in loader:
    for i, tokens in zip(batch["ids"], batch["tokens"]):
        assert tokens.tolist() == [i] * (i % 7 + 1), (i, tokens)
    with open(log, "a") as file:
        file.write(" ".join(map(str, batch["ids"])) + "\\n")
    taken += 1
    while taken == gate_at and not os.path.exists("gate"):
        time.sleep(0.01)
print("done")
"""


class Ranks:
    """Processes of one job, as a launcher starts them."""

    def __init__(self, folder, kind, socket):
        # By its name the runs of one launcher are told apart.
        self.script = folder / f"{kind}.py"
        self.script.write_text(SCRIPT)
        self.folder, self.kind, self.socket = folder, kind, socket
        self.running = {}

    def start(self, rank):
        environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS),
                       "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(RANKS),
                       "PENSTOCK_SOCKET": self.socket}
        self.running[rank] = subprocess.Popen(
            [sys.executable, self.script, self.kind, self.log(rank),
             str(ROWS), str(SIZE), str(GATE_AT)], env=environment, text=True,
            cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def log(self, rank):
        return self.folder / f"rank_{rank}"

    def batches(self, rank):
        """Whole ones that this rank has written down."""
        if not self.log(rank).exists():
            return []
        return [[int(i) for i in line.split()]
                for line in self.log(rank).read_text().splitlines(True)
                if line.endswith("\n")]

    def at_gate(self, rank):
        end = time.monotonic() + 60
        while len(self.batches(rank)) < GATE_AT:
            assert time.monotonic() < end, [self.batches(rank) for rank in range(RANKS)]
            time.sleep(0.01)

    def ended(self):
        for process in self.running.values():
            text, _ = process.communicate(timeout=120)
            assert process.returncode == 0 and "done" in text, text

    def makers(self):
        """The processes that make batches."""
        return {int(pid) for rank in range(RANKS)
                for pid in self.made(rank)}

    def made(self, rank):
        made = self.folder / f"rank_{rank}.made"
        return made.read_text().split() if made.exists() else []


@pytest.fixture(params=["collate_fn", "batch_sampler", "iterable"])
def ranks(request, tmp_path, broker):
    all_of_them = Ranks(tmp_path, request.param, broker.socket)
    yield all_of_them
    for process in all_of_them.running.values():
        process.kill()
        process.communicate()


def test_each_sample_comes_once(ranks):
    for rank in range(RANKS):
        ranks.start(rank)
        if ranks.kind != "iterable":  # whose ranks take their turns
            ranks.at_gate(rank)
    for rank in range(RANKS):
        ranks.at_gate(rank)
    for pid in ranks.makers():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    ranks.running[1].kill()
    ranks.running[1].communicate()
    (ranks.folder / "gate").touch()
    ranks.start(1)
    ranks.ended()
    taken = [collections.Counter(map(tuple, ranks.batches(rank)))
             for rank in range(RANKS)]
    assert sorted(i for of_rank in taken for batch in of_rank for i in batch) == list(
        range(ROWS))
    # Again comes only the batch that the killed rank had in its hand.
    again = [sum(of_rank.values()) - len(of_rank) for of_rank in taken]
    assert again == [0, 1, 0]


ALONE = """
import sys
import torch
from torch import distributed
import penstock.torch
distributed.init_process_group("gloo")
rank = distributed.get_rank()
rows = list(range(10))
each = penstock.torch.DataLoader(rows, batch_size=5, rank=0, world_size=1)
seen = [torch.cat(list(each)).tolist() for _ in range(2)]
if rank == 0:
    validation = penstock.torch.DataLoader(rows, batch_size=5, rank=0, world_size=1)
    for _ in range(3):
        for batch in validation:
            break
    seen.append(batch.tolist())
print(seen)
distributed.barrier()
"""


def test_ranks_that_have_all_rows(tmp_path):
    """Each of them, or one alone, which may leave its loop without the others."""
    with contextlib.closing(sockets.socket()) as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    ranks = [subprocess.Popen(
        [sys.executable, "-c", ALONE], stdout=subprocess.PIPE, text=True, cwd=tmp_path,
        env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank),
             "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": str(port),
             "PENSTOCK_SOCKET": ""}) for rank in range(2)]
    rows = list(range(10))
    assert [rank.communicate(timeout=100)[0].strip() for rank in ranks] == [
        str([rows, rows, rows[:5]]), str([rows, rows])]


def test_a_long_wait_for_other_ranks_is_told(monkeypatch):
    monkeypatch.setattr(torch_ranks, "_PATIENCE_S", 0.01)
    with pytest.warns(UserWarning, match="waits for the other ranks.*world_size=1"):
        with torch_ranks.meeting():
            time.sleep(0.5)
