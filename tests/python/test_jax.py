"""JAX on the CPU."""

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
