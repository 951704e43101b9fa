"""Batches on a GPU, with a stand-in of libcuda whose device memory is the host's and
whose copies are late: programs that read DLPack's capsules themselves, one that is
killed while its batch is copied, and machines without a driver."""

import ctypes
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys

import penstock
import pytest

SUPPORT = pathlib.Path(__file__).resolve().parents[1] / "support"

# What a framework does with an array, in plain ctypes.
PRELUDE = """
import ctypes, os, signal, sys, warnings
import numpy as np
import penstock

class Tensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2),
                ("dimensions", ctypes.c_int32), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
                ("shape", ctypes.POINTER(ctypes.c_int64))]

cuda = ctypes.CDLL("libcuda.so.1")
get = ctypes.pythonapi.PyCapsule_GetPointer
get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]

def read(array):
    assert array.__dlpack_device__() == (2, 0)
    capsule = array.__dlpack__(stream=1)
    cuda.stand_in_synchronize(ctypes.c_void_p(1))
    tensor = Tensor.from_address(get(capsule, b"dltensor"))
    assert list(tensor.device) == [2, 0] and tensor.lanes == 1
    shape = tensor.shape[:tensor.dimensions]
    kind = {0: "i", 1: "u", 2: "f", 6: "b"}[tensor.code]
    dtype = np.dtype(f"{kind}{tensor.bits // 8}")
    size = int(np.prod(shape)) * dtype.itemsize
    return np.frombuffer(ctypes.string_at(tensor.data or 0, size), dtype).reshape(shape)
"""


@pytest.fixture(scope="session")
def stand_in(tmp_path_factory):
    """The folder of a libcuda.so.1."""
    compiler = shutil.which(os.environ.get("CXX", "c++"))
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("stand_in")
    subprocess.run([compiler, "-std=c++20", "-shared", "-fPIC", "-pthread",
                    f"-I{SUPPORT.parents[1]}", "-Wl,-soname,libcuda.so.1",
                    str(SUPPORT / "stand_in_cuda.cc"), "-o", str(folder / "libcuda.so.1")],
                   check=True)
    return folder


@pytest.fixture
def run(stand_in, in_broker, tmp_path):
    """Runs a program beside the stand-in. Returns what it printed, and what the
    stand-in found when it ended."""
    def run_program(program, *arguments, killed=False, **settings):
        report = tmp_path / "report.json"
        done = subprocess.run(
            [sys.executable, "-c", PRELUDE + program, *arguments], text=True,
            capture_output=True, timeout=100,
            env={**os.environ, "LD_LIBRARY_PATH": str(stand_in),
                 "STAND_IN_REPORT": str(report),
                 **{f"STAND_IN_{name}": str(value) for name, value in settings.items()}})
        assert done.returncode == (-signal.SIGKILL if killed else 0), done.stderr
        found = {} if killed else json.loads(report.read_text())
        return done.stdout, found
    return run_program


NOTHING_LEFT = {"faults": 0, "registered": 0, "device_bytes": 0, "host_bytes": 0,
                "streams": 0, "events": 0, "contexts": 0}


def left_nothing(found):
    return {key: found[key] for key in NOTHING_LEFT} == NOTHING_LEFT


EVERY_BATCH = """
data = penstock.Dataset.synthetic(400, {"a": {"dtype": "float32", "shape": [3, 50]},
                                        "b": {"dtype": "bool", "shape": []},
                                        "c": {"dtype": "int64", "shape": [2]}}).batch(16)
with warnings.catch_warnings(record=True) as warned, penstock.attach(data) as reader:
    warnings.simplefilter("always")
    reader.prefetch_to_device("cuda", 2)
    for batch in reader:
        wanted = {name: array.copy() for name, array in batch.items()}
        arrays = batch.to_device()
        batch.release()
        for name, array in arrays.items():
            np.testing.assert_array_equal(read(array), wanted[name])
    print(reader.stats())
for each in warned:
    print(each.category.__name__, each.message)
del array, arrays
"""


def test_every_feature_comes_as_it_was_made(run):
    printed, found = run(EVERY_BATCH, DELAY_US=300)
    assert left_nothing(found) and "Warning" not in printed
    assert "'staging_bytes': 0" in printed and "'registered_bytes': 0" not in printed


@pytest.mark.parametrize("refusal, why", [
    ({"REFUSE_REGISTER": 1}, "operation not supported"),
    ({"NO_READ_ONLY": 1}, "the GPU says that it cannot")])
def test_where_the_driver_refuses_a_warning_says_why(run, refusal, why):
    printed, found = run(EVERY_BATCH, DELAY_US=300, **refusal)
    assert left_nothing(found)
    assert "RuntimeWarning penstock: batches go to cuda:0 by way of pinned buffers" in printed
    assert why in printed and "'registered_bytes': 0" in printed


def test_readers_come_and_go_and_leave_nothing(run):
    printed, found = run("""
data = penstock.Dataset.range(64).batch(8)
for i in range(100):
    with penstock.attach(data, job="again") as reader:
        batch = reader.next()
        assert read(batch.to_device()["value"]).tolist() == list(range(8))
        if i == 50:
            assert os.fork() or os._exit(0)  # the child calls nothing
            os.wait()
print(len(open("/proc/self/maps").readlines()) < 1000)
""")
    assert left_nothing(found) and printed == "True\n" and found["registrations"] > 0


def test_a_rank_that_is_killed_with_a_copy_under_way(run, attach):
    """It had the first batch, and not those that were on the GPU."""
    data = penstock.Dataset.range(64).batch(8)
    run("""
reader = penstock.attach(penstock.Dataset.range(64).batch(8), job="killed")
reader.prefetch_to_device(size=2)
first = reader.next()
arrays = first.to_device()
second = reader.next()
os.kill(os.getpid(), signal.SIGKILL)
""", killed=True, DELAY_US=300_000)
    rows = [(batch["value"].tolist(), batch.redelivered)
            for batch in attach(data, job="killed")]
    assert [row for batch, _ in rows for row in batch] == list(range(64))
    assert [redelivered for _, redelivered in rows] == [True, True] + [False] * 6


def test_another_gpu_than_the_readers(run):
    run("""
reader = penstock.attach(penstock.Dataset.range(8).batch(8))
batch = reader.next()
batch.to_device(0)
for device, error in ("cuda:1", ValueError), ("cpu", ValueError):
    try: batch.to_device(device)
    except error as raised: print(raised)
    else: sys.exit("no error")
reader.close()
""")


def no_driver():
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return True
    return False


@pytest.mark.skipif(not no_driver(), reason="there is a driver")
def test_without_a_driver(attach, numbers):
    batch = attach(numbers).next()
    with pytest.raises(penstock.errors.NotFound, match="no driver of an NVIDIA GPU"):
        batch.to_device()


def test_a_driver_without_a_gpu(run):
    printed, _ = run("""
reader = penstock.attach(penstock.Dataset.range(8).batch(8))
try: reader.prefetch_to_device()
except penstock.errors.NotFound as error: print(error)
reader.close()
""", NO_DEVICE=1)
    assert "cuInit" in printed and "CUDA error 100" in printed


# ---- PyTorch, which without CUDA takes no such tensors itself

TORCH = """
import penstock.torch
import torch
from_dlpack = torch.from_dlpack
torch.from_dlpack = lambda array: (
    torch.from_numpy(read(array).copy()) if array.__dlpack_device__()[0] == 2
    else from_dlpack(array))
"""


def test_a_loader_of_a_spec_on_the_gpu(run):
    pytest.importorskip("torch")
    _, found = run(TORCH + """
data = penstock.Dataset.range(40).batch(8)
with penstock.torch.DataLoader(data, features=("value",), device="cuda",
                               prefetch_to_device=1) as loader:
    print([x.tolist() for x, in loader] == np.arange(40).reshape(5, 8).tolist())
""", DELAY_US=1000)
    assert left_nothing(found) and found["copies"] == 5


def test_a_loader_of_a_python_dataset_on_the_gpu(run):
    pytest.importorskip("torch")
    printed, found = run(TORCH + """
class Squares(torch.utils.data.Dataset):
    def __len__(self): return 20
    def __getitem__(self, i): return torch.full((1000 * (i + 1),), i), i * i

with penstock.torch.DataLoader(Squares(), batch_size=None, device="cuda:0") as loader:
    for i, (x, y) in enumerate(loader):
        assert x.shape == (1000 * (i + 1),) and (x == i).all() and y == i * i
    print(i, loader.reader.stats()["registered_bytes"] > 0)
""", DELAY_US=1000)
    assert printed == "19 True\n" and left_nothing(found)


@pytest.mark.skipif(not no_driver(), reason="there is a driver")
def test_a_loader_without_a_driver_says_that_pytorch_copies(attach, in_broker):
    torch = pytest.importorskip("torch")
    import penstock.torch
    with pytest.warns(match="no driver of an NVIDIA GPU.*by way of PyTorch's pinned memory"):
        loader = penstock.torch.DataLoader(penstock.Dataset.range(8).batch(8), device="cuda")
    if torch.version.cuda is None:
        with pytest.raises((RuntimeError, AssertionError)):
            next(iter(loader))
    loader.close()
