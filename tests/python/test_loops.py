"""The examples whose loops are other packages': killed in the middle of an epoch and
started again, each trains on the same rows as a run that nobody killed, and ends with
the same weights."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys

import penstock
import pytest

torch = pytest.importorskip("torch")
import penstock.torch  # noqa: E402

EXAMPLES = (pathlib.Path(__file__).parent.parent.parent
            / "client" / "python" / "examples")

# Runs the example; writes what its rank gets of each batch, and dies at batch KILL_AT.
# Ends without the interpreter's own end: a thread of Gloo's or autograd's that lets go
# of a tensor then aborts the process (pytorch/pytorch issue 190489).
WATCH = """
import atexit, faulthandler, json, os, sys
import penstock.torch

faulthandler.enable()

result = penstock.torch.DataLoader._result


def watched(self, batch):
    steps = batch.epoch * self.reader.steps_per_epoch + batch.step
    if steps == int(os.environ["KILL_AT"]):
        os._exit(9)
    with open(f"{os.environ['SEEN']}-{self.reader.rank}", "a") as file:
        file.write(json.dumps([batch.epoch, batch.step, batch.ids.tolist()]) + "\\n")
    return result(self, batch)


penstock.torch.DataLoader._result = watched
with open(sys.argv[1]) as file:
    exec(compile(file.read(), sys.argv[1], "exec"))
atexit._run_exitfuncs()
sys.stdout.flush()
os._exit(0)
"""
NEVER = 1 << 30
STEPS = [(epoch, step) for epoch in range(3) for step in range(10)]
PYTHON = [sys.executable]
TORCHRUN = [*PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@pytest.fixture(scope="module")
def order(broker):
    """What each of two ranks gets, {(epoch, step): ids}."""
    loader = penstock.torch.DataLoader(
        torch.utils.data.TensorDataset(torch.arange(640)), 64, shuffle=True,
        socket=broker.socket)
    ranks = [{}, {}]
    for epoch in range(3):
        for step, (ids,) in enumerate(loader):
            ranks[0][epoch, step], ranks[1][epoch, step] = ids.reshape(2, 32).tolist()
        assert sorted(i for rank in ranks for step in range(10)
                      for i in rank[epoch, step]) == list(range(640))
    return ranks


@pytest.mark.parametrize("command, example, needs, backend, resumes_at", [
    (PYTHON, "lightning_fit.py", ["lightning"], "", (1, 6)),
    (TORCHRUN, "hf_accelerate.py", ["accelerate"], "", (1, 8)),
    (TORCHRUN, "hf_trainer.py", ["transformers"], "", (1, 0)),
    (TORCHRUN, "keras_fit.py", ["keras"], "torch", (1, 0)),
    (TORCHRUN, "keras_fit.py", ["keras", "jax"], "jax", (0, 0)),
    (TORCHRUN, "keras_fit.py", ["keras", "tensorflow"], "tensorflow", (0, 0)),
], ids=["lightning", "accelerate", "trainer", "keras-torch", "keras-jax",
        "keras-tensorflow"])
def test_a_killed_run_goes_on_as_if_it_had_not_been(
        tmp_path, order, command, example, needs, backend, resumes_at):
    for package in needs:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"no {package}")

    def run(name, folder, kill_at=NEVER):
        """What the ranks had, {(epoch, step): ids}, and their weights at the end."""
        folder.mkdir(exist_ok=True)
        (folder / "watch.py").write_text(WATCH)
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith("PENSTOCK_")}
        done = subprocess.run(
            [*command, "watch.py", EXAMPLES / example], cwd=folder, text=True,
            env={**environment, "KILL_AT": str(kill_at), "SEEN": name,
                 "OMP_NUM_THREADS": "1", "KERAS_BACKEND": backend or "torch"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        # Before what torchrun says of its workers.
        print(done.stdout.split("torch/distributed/elastic")[0][-3000:])
        assert (done.returncode == 0) == (kill_at == NEVER)
        seen = []
        for rank in range(2):
            with open(folder / f"{name}-{rank}") as file:
                seen.append({(epoch, step): ids
                             for epoch, step, ids in map(json.loads, file)})
        # Two ranks may print at once: only the lists are whole.
        return seen, sorted(re.findall(r"\[\[-?\d[^][]*\]\]", done.stdout))

    if resumes_at > (0, 0):  # one backend of Keras is enough
        run("killed", tmp_path / "killed", kill_at=19)
    resumed, weights = run("resumed", tmp_path / "killed")
    for ranks, wanted in zip(resumed, order):
        # Keras looks at the first batches before it says which epoch it begins.
        had = [step for step in ranks if step >= resumes_at or not backend]
        assert had == [step for step in STEPS if step >= resumes_at]
        assert all(wanted[step] == ids for step, ids in ranks.items())
    if not backend:
        whole, wanted = run("whole", tmp_path / "whole")
        assert whole == order
        assert len(weights) == 2 and weights == wanted
