"""PyTorch: tensors share a batch's memory, a loop written for a DataLoader runs, DDP
trains."""

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

import numpy as np
import penstock
import pytest

torch = pytest.importorskip("torch")


@pytest.fixture
def pairs():
    return penstock.Dataset.tensors(
        {"x": np.arange(24, dtype=np.float32).reshape(12, 2),
         "y": list(range(12))}).batch(4)


def test_tensors_share_the_batch_s_memory_until_they_are_written(attach, pairs):
    reader = attach(pairs.repeat(4))
    for step in range(12):
        batch = reader.next() if step % 3 or not step else next_epoch(reader)
        tensors = batch.torch()
        assert tensors["x"].shape == (4, 2)
        before = batch["x"].copy()
        assert (tensors["x"].numpy() == before).all(), "of the batch before"
        tensors["x"].mul_(0).sub_(1)
        assert (tensors["x"] == -1).all()
        assert (batch["x"] == before).all()
        del batch, tensors


def next_epoch(reader):
    with pytest.raises(penstock.EndOfEpoch):
        reader.next()
    return reader.next()


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64",
                                   "float16", "bfloat16", "float32", "float64",
                                   "bool"])
def test_every_dtype(attach, dtype):
    dataset = penstock.Dataset.synthetic(
        4, {"x": {"dtype": dtype, "shape": [3]}}).batch(4)
    tensor = attach(dataset).next().torch()["x"]
    assert tensor.dtype == getattr(torch, dtype)
    assert tensor.shape == (4, 3)


def test_a_tensor_keeps_its_batch(attach, pairs):
    reader = attach(pairs)
    tensor = reader.next().torch()["x"]
    assert reader.stats()["held"] == 1
    view = tensor[1]
    del tensor
    assert view.tolist() == [2, 3]
    del view
    assert reader.stats()["held"] == 0


def test_a_tensor_outlives_its_reader(attach, pairs):
    reader = attach(pairs)
    tensor = reader.next().torch()["x"]
    tensor[0, 0] = -1
    reader.close()
    assert tensor.flatten().tolist() == [-1, 1, 2, 3, 4, 5, 6, 7]


@pytest.fixture
def loader(broker, request):
    made = []

    def make(dataset, **options):
        import penstock.torch

        options.setdefault("job", request.node.name[:60])
        made.append(penstock.torch.DataLoader(dataset, timeout_s=60, **options))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_a_loop_written_for_a_data_loader(loader, pairs):
    data = loader(pairs.repeat(2), features=("x", "y"))
    assert len(data) == 3
    for epoch in range(2):
        rows = [label for x, y in data for label in y.tolist()]
        assert rows == list(range(12))
    with pytest.raises(penstock.FailedPrecondition, match="all 2 epochs"):
        list(data)


def test_dictionaries_without_names(loader, pairs):
    first = next(iter(loader(pairs)))
    assert sorted(first) == ["x", "y"]


def test_an_unknown_feature(loader, pairs):
    with pytest.raises(KeyError, match="there are: x, y"):
        loader(pairs, features=("image",))


def test_arguments_that_are_said_elsewhere(loader, pairs):
    with pytest.raises(TypeError, match="no 'num_workers': the broker's workers"):
        loader(pairs, num_workers=4)


def test_its_state(loader, pairs):
    data = loader(pairs, features=("y",))
    batches = iter(data)
    next(batches)
    state = data.state_dict()
    assert [y.tolist() for y, in batches] == [[4, 5, 6, 7], [8, 9, 10, 11]]
    data.load_state_dict(state)
    assert [y.tolist() for y, in data] == [[4, 5, 6, 7], [8, 9, 10, 11]]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_batches_on_a_device(loader, pairs):
    for epoch, (x, y) in enumerate(loader(pairs, features=("x", "y"),
                                          device="cuda")):
        assert x.is_cuda and y.cpu().tolist() == [4 * epoch + i for i in range(4)]


DDP = """
import os, torch, torch.distributed as dist, penstock, penstock.torch
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
loader = penstock.torch.DataLoader(features=("x", "y"), timeout_s=60)
seen = torch.zeros(12)
for x, y in loader:
    loss = ((model(x)[:, 0] - y) ** 2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    seen[y] += 1
dist.all_reduce(seen)
assert (seen == 1).all(), seen
weight = model.module.weight.detach().clone()
dist.broadcast(weight, 0)
assert torch.equal(weight, model.module.weight)
print("trained", dist.get_rank(), flush=True)
loader.close()
dist.destroy_process_group()
os._exit(0)  # as the example has it
"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_ddp(pairs, tmp_path, ranks):
    import subprocess

    spec = tmp_path / "pairs.yaml"
    spec.write_text(pairs.shuffle(1).to_yaml())
    (tmp_path / "train.py").write_text(DDP)
    result = subprocess.run(
        [pathlib.Path(sys.executable).with_name("penstock"), "run", "--dataset", spec, "--ranks", str(ranks), "--",
         sys.executable, tmp_path / "train.py"],
        capture_output=True, text=True, timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("trained") == ranks


def test_a_trace_lies_beside_torch_s_profiler(attach, broker, tmp_path):
    """A rank takes its batches when torch.profiler and `penstock trace` say so."""
    reader = attach(penstock.Dataset.range(10_000).batch(2), job="profiled")
    reader.next()

    def profiled(path, over):
        with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            for step in itertools.count():
                with torch.profiler.record_function("take"):
                    reader.next()
                time.sleep(0.03 + 0.01 * (step % 5))
                if over():
                    break
        profile.export_chrome_trace(str(path))
        return json.loads(path.read_text())

    # It is of another minute: only its base matters.
    before = profiled(tmp_path / "before.json", lambda: True)
    command = shutil.which("penstock", path=os.path.dirname(sys.executable))
    with subprocess.Popen([command, "trace", "profiled", "--socket", broker.socket,
                           "--seconds", "2", "--beside", tmp_path / "before.json",
                           "--out", tmp_path / "ours.json"]) as recording:
        theirs = profiled(tmp_path / "torch.json",
                          lambda: recording.poll() is not None)
        assert recording.wait() == 0
    ours = json.loads((tmp_path / "ours.json").read_text())
    base = theirs.get("baseTimeNanoseconds", 0)
    assert base == before.get("baseTimeNanoseconds", 0)
    assert ours["otherData"]["base_unix_ns"] == base

    takes = sorted((each["ts"], each["ts"] + each["dur"])
                   for each in theirs["traceEvents"]
                   if each.get("name") == "take" and each["ph"] == "X")
    began = {each["args"]["batch"]: each["ts"] for each in ours["traceEvents"]
             if each["name"] == "batch"}
    # Two were taken before. The first that is seen may have begun before the trace.
    seen = [(began[number] - begin, began[number] - end)
            for number, (begin, end) in enumerate(takes, start=3)
            if number in began and number != min(began)]
    assert len(seen) > 5
    # Microseconds: the rank's page is looked at each millisecond, later on a busy machine,
    # never before the take begins.
    assert min(since_begin for since_begin, _ in seen) > -1_000, seen
    assert min(since_end for _, since_end in seen) < 3_000, seen
