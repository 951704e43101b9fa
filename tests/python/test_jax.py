"""JAX on the CPU: arrays share a batch's memory and keep the batch."""

import subprocess
import sys

import numpy as np
import penstock
import pytest

jax = pytest.importorskip("jax")


@pytest.fixture
def batch(attach):
    return attach(penstock.Dataset.tensors(
        {"x": np.arange(64, dtype=np.float32).reshape(4, 16),
         "y": [1, 2, 3, 4]}).batch(4)).next()


def test_arrays_share_the_batch_s_memory(batch):
    x = batch.jax()["x"]
    assert x.unsafe_buffer_pointer() == np.asarray(
        batch._exporter(0)).ctypes.data
    assert (np.asarray(x) == batch["x"]).all()
    assert float(jax.numpy.sum(x)) == 64 * 63 / 2


def test_integers_of_64_bits(batch):
    y = batch.jax()["y"]
    assert y.tolist() == [1, 2, 3, 4]
    assert y.dtype == (np.int64 if jax.config.jax_enable_x64 else np.int32)


def test_an_array_keeps_its_batch(attach):
    reader = attach(penstock.Dataset.tensors(
        {"x": np.ones((4, 16), np.float32)}).batch(4))
    x = reader.next().jax()["x"]
    assert reader.stats()["held"] == 1
    del x
    assert reader.stats()["held"] == 0


def test_a_loop_that_does_not_wait_for_its_steps(attach):
    """JAX returns before it has computed; the reader waits for what reads its
    batches."""
    reader = attach(penstock.Dataset.synthetic(
        1920, {"x": penstock.TensorSpec((256,), np.float32)}).batch(64))

    @jax.jit
    def step(w, x):
        for _ in range(20):
            w = w - 1e-6 * (x.T @ jax.numpy.tanh(x @ w))
        return w

    w = jax.numpy.zeros((256, 256))
    steps = 0
    for batch in reader:
        w = step(w, batch.jax()["x"])
        step(w, jax.numpy.asarray(batch["x"]))  # a result that nobody keeps
        steps += 1
    assert steps == 30
    assert jax.numpy.isfinite(w).all()


def test_batches_that_the_program_holds_are_not_waited_for(attach):
    reader = attach(penstock.Dataset.synthetic(
        64, {"x": penstock.TensorSpec((4,), np.float32)}).batch(8).hold(2))
    held = [reader.next().jax() for _ in range(2)]
    with pytest.raises(penstock.ResourceExhausted, match="hold:"):
        reader.next()
    del held


DEVICES = """
import os
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
import jax, numpy as np, penstock, sys
from jax.sharding import Mesh, NamedSharding, PartitionSpec
data = penstock.Dataset.tensors(
    {"x": np.arange(48, dtype=np.float32).reshape(24, 2)}).batch(8, last="drop")
devices = np.array(jax.local_devices())
with penstock.replicas(data, 4, job="mesh", socket=sys.argv[1]) as replicas:
    for mesh, spec in ((Mesh(devices, "rows"), PartitionSpec("rows")),
                       (Mesh(devices.reshape(2, 2), ("rows", "model")),
                        PartitionSpec("rows", "model"))):
        state = replicas.state_dict()
        for step, batches in enumerate(replicas):
            x = penstock.global_arrays(batches, NamedSharding(mesh, spec))["x"]
            assert x.shape == (8, 2) and len(x.addressable_shards) == 4
            assert float(jax.jit(lambda x: x.sum())(x)) == sum(range(16 * step, 16 * step + 16))
            assert np.asarray(x).ravel().tolist() == list(range(16 * step, 16 * step + 16))
            del batches, x
        assert step == 2
        replicas.load_state_dict(state)
"""


def test_a_global_array_of_the_local_replicas(broker):
    subprocess.run([sys.executable, "-c", DEVICES, broker.socket], check=True, timeout=120)
