"""The examples of language models, run as a user runs them: killed or resumed with other
numbers of processes, they have the sequences of a run that nobody stopped; tensor-parallel
processes have the same ones."""

import importlib.util
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest

pytest.importorskip("torch")

EXAMPLES = (pathlib.Path(__file__).parent.parent.parent
            / "client" / "python" / "examples")

# Runs the example; writes what its process gets of each batch, and dies at batch KILL_AT of
# those that are not for validation.
WATCH = """
import atexit, json, os, sys
import penstock

take = penstock.Reader._take


def watched(self):
    batch = take(self)
    if batch is not None and self.job != "val":
        self.seen = getattr(self, "seen", -1) + 1
        if self.seen == int(os.environ["KILL_AT"]):
            os._exit(9)
        with open(f"{os.environ['SEEN']}.{self.rank}.{self.replica}", "a") as file:
            file.write(json.dumps([batch.epoch, batch.step, batch.ids.tolist()]) + "\\n")
    return batch


penstock.Reader._take = watched
sys.argv = sys.argv[1:]
with open(sys.argv[0]) as file:
    exec(compile(file.read(), sys.argv[0], "exec"))
atexit._run_exitfuncs()
sys.stdout.flush()
os._exit(0)  # pytorch/pytorch issue 190489
"""


def run(folder, name, processes, example, *arguments, kill_at=-1):
    """What it printed, and what its processes had, {(rank, replica): [(epoch, step, ids)]}."""
    folder.mkdir(exist_ok=True)
    (folder / "watch.py").write_text(WATCH)
    environment = {key: value for key, value in os.environ.items()
                   if not key.startswith("PENSTOCK_")}
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--standalone",
         f"--nproc-per-node={processes}", "watch.py", EXAMPLES / example, *arguments],
        cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
        env={**environment, "KILL_AT": str(kill_at), "SEEN": name, "OMP_NUM_THREADS": "1",
             "PYTHONPATH": os.pathsep.join(filter(None, [
                 str(EXAMPLES), environment.get("PYTHONPATH")]))})
    # Before what torchrun says of its workers.
    print(done.stdout.split("torch/distributed/elastic")[0][-3000:])
    assert (done.returncode == 0) == (kill_at < 0)
    seen = {}
    for path in folder.glob(f"{name}.*.*"):
        rank, replica = map(int, path.name.split(".")[1:])
        seen[rank, replica] = [json.loads(line) for line in path.read_text().splitlines()]
    return done.stdout, seen


def sequences(seen):
    """The sequences of all ranks in the order of the job."""
    ranks = [seen[rank, 0] for rank in range(len({rank for rank, _ in seen}))]
    assert len({len(steps) for steps in ranks}) == 1
    return [i for steps in zip(*ranks) for _, _, ids in steps for i in ids]


def test_a_killed_run_goes_on_with_another_number_of_processes(tmp_path):
    arguments = ["nanogpt_ddp.py", "--steps", "50", "--save-every", "20"]
    output, whole = run(tmp_path / "whole", "whole", 2, *arguments)
    run(tmp_path / "killed", "killed", 2, *arguments, kill_at=45)
    again, resumed = run(tmp_path / "killed", "resumed", 1, *arguments)
    assert sequences(resumed) == sequences(whole)[40 * 32:]
    first, last = (float(re.search(r"val loss ([\d.]+)", each)[1])
                   for each in (output, again))
    assert last == pytest.approx(first, abs=0.01) and last < 3


def test_the_trainer_goes_on_as_if_it_had_not_been_killed(tmp_path):
    for package in "transformers", "accelerate":
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"no {package}")
    output, whole = run(tmp_path / "whole", "whole", 2, "hf_packing.py")
    run(tmp_path / "killed", "killed", 2, "hf_packing.py", kill_at=90)
    again, resumed = run(tmp_path / "killed", "resumed", 2, "hf_packing.py")
    wanted, found = (re.findall(r"\[\[-?\d[^][]*\]\]", each) for each in (output, again))
    assert len(wanted) == 2 and found == wanted
    for rank, steps in whole.items():
        # It passes over the batches of the epoch that it had, to the eightieth.
        assert resumed[rank][-len(steps) + 80:] == steps[80:]


def losses(output):
    found = re.findall(r"loss ([\d.]+), then ([\d.]+)", output)
    return [tuple(map(float, each)) for each in found]


def test_tensor_parallel_processes_have_the_same_batches(tmp_path):
    output, seen = run(tmp_path, "seen", 4, "nanogpt_tp.py", "--steps", "30")
    assert sorted(seen) == list(itertools.product(range(2), range(2)))
    assert seen[0, 0] == seen[0, 1] and seen[1, 0] == seen[1, 1]
    had = sequences(seen)
    assert len(set(had)) == len(had) >= 30 * 32
    assert len(losses(output)) == 4
    assert all(last < first - 1 for first, last in losses(output))


def test_packed_documents_go_on_with_other_ranks(tmp_path):
    arguments = ["torchtitan_loop.py", "--checkpoint", "ckpt", "--steps"]
    _, two = run(tmp_path, "two", 2, *arguments, "20")
    output, three = run(tmp_path, "three", 3, *arguments, "40")
    _, alone = run(tmp_path / "alone", "alone", 1, *arguments, "60")
    had = sequences(two) + sequences(three)
    assert len(had) == 20 * 8 + 20 * 12
    assert had[:60 * 4] == sequences(alone)
    assert len(set(had)) == len(had) and len(three) == 3
    assert max(map(float, re.findall(r"step 40, rank \d: loss ([\d.]+)", output))) < 3.2


def test_megatrons_loop_begins_at_consumed_samples(tmp_path):
    pytest.importorskip("megatron.core")
    output, seen = run(tmp_path, "seen", 4, "megatron_external.py", "--steps", "12")
    assert sorted(seen) == list(itertools.product(range(2), range(2)))
    assert seen[0, 0] == seen[0, 1] and seen[1, 0] == seen[1, 1]
    assert sequences(seen) == list(range(12 * 16))
    first, last = (max(map(float, re.findall(rf"step {step}, .*loss ([\d.]+)", output)))
                   for step in (0, 11))
    assert last < first - 1
    _, two = run(tmp_path, "two", 2, "megatron_external.py", "--steps", "3",
                 "--consumed", "80")
    assert sorted(two) == [(0, 0), (0, 1)] and two[0, 0] == two[0, 1]
    assert sequences(two) == list(range(80, 80 + 3 * 8))
