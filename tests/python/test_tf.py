"""TensorFlow on the CPU: tensors keep their batch, and Keras trains on a tf.data.Dataset."""

import collections
import subprocess
import sys

import numpy as np
import penstock
import pytest

tf = pytest.importorskip("tensorflow")


@pytest.fixture
def pairs():
    return penstock.Dataset.tensors(
        {"x": np.arange(24, dtype=np.float32).reshape(12, 2),
         "y": list(range(12))}).batch(4)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64",
                                   "float16", "bfloat16", "float32", "float64",
                                   "bool"])
def test_every_dtype(attach, dtype):
    dataset = penstock.Dataset.synthetic(
        4, {"x": {"dtype": dtype, "shape": [3]}}).batch(4)
    tensor = attach(dataset).next().tf()["x"]
    assert tensor.dtype == tf.as_dtype(dtype)
    assert tensor.shape == (4, 3)


def test_a_tensor_keeps_its_batch(attach, pairs):
    reader = attach(pairs)
    tensor = reader.next().tf()["x"]
    assert reader.stats()["held"] == 1
    assert tensor.numpy()[1].tolist() == [2, 3]
    del tensor
    assert reader.stats()["held"] == 0


def test_a_dataset(broker, pairs):
    import penstock.tf

    data = penstock.tf.dataset(pairs.repeat(2), features=("x", "y"),
                               job="tf-dataset", timeout_s=60)
    assert data.element_spec == (tf.TensorSpec((None, 2), tf.float32, "x"),
                                 tf.TensorSpec((None,), tf.int64, "y"))
    for epoch in range(2):
        rows = [int(label) for x, y in data for label in y]
        assert rows == list(range(12))
    data.reader.close()


def labels_in(data):
    return [int(label) for x, y in data for label in y]


def mapping_of(tensor):
    """What the tensor's memory is mapped from; "": of no file."""
    address = np.from_dlpack(tensor).__array_interface__["data"][0]
    with open("/proc/self/maps") as maps:
        for line in maps:
            begin, end = (int(each, 16) for each in line.split()[0].split("-"))
            if begin <= address < end:
                return line.split(maxsplit=5)[5:]


def test_a_dataset_copies_only_what_its_rank_may_not_hold(broker, request, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(1 << 16).reshape(64, 1024))
    rows = penstock.Dataset.npy({"x": tmp_path / "x.npy"}).batch(4).hold(6)
    want = list(range(0, 1 << 16, 1024))
    for job, pipeline, kept in (
            ("one", lambda dataset: dataset, 1), ("all", lambda dataset: dataset, 16),
            ("ahead", lambda dataset: dataset.prefetch(2), 1)):
        dataset = penstock.tf.dataset(rows, socket=broker.socket, rank=0, world_size=1,
                                      job=f"{request.node.name}-{job}")
        elements, found, shared = collections.deque(maxlen=kept), [], 0
        for element in pipeline(dataset):
            elements.append(element["x"])
            shared += "penstock" in str(mapping_of(elements[-1]))
            found += elements[-1][:, 0].numpy().tolist()
        assert found == want
        if kept > 1:
            assert 0 < shared < 6
            assert [i for each in elements for i in each[:, 0].numpy().tolist()] == want
        else:
            assert shared > 8
        elements.clear()
        dataset.reader.close()


def test_iterated_after_its_last_epoch_it_says_so(broker, pairs):
    import penstock.tf

    data = penstock.tf.dataset(pairs.repeat(2), features=("x", "y"),
                               job="tf-over", timeout_s=60)
    begin = data.reader.state_dict()
    mapped = data.map(lambda x, y: (x, y))
    assert labels_in(data) == labels_in(mapped) == list(range(12))
    for again in (data, mapped, data.repeat()):
        with pytest.raises(tf.errors.UnknownError,
                           match=r"all 2 epochs of this job are over.*\.repeat\(n\)"
                                 r".*steps_per_epoch.*load_state_dict.*reset"):
            labels_in(again)
    # The workaround that the message names.
    data.reader.load_state_dict(begin)
    assert labels_in(data) == list(range(12))
    data.reader.close()


def test_repeat_ends_with_the_last_epoch(broker, pairs):
    import penstock.tf

    data = penstock.tf.dataset(pairs.repeat(5), features=("x", "y"),
                               job="tf-repeat", timeout_s=60)
    assert labels_in(data) == list(range(12))
    assert labels_in(data.repeat(2)) == 2 * list(range(12))
    assert labels_in(data.repeat()) == 2 * list(range(12))
    data.reader.close()


def test_repeat_of_more_epochs_than_there_are_says_so(broker, pairs):
    dataset = penstock.tf.dataset(pairs.repeat(2), socket=broker.socket,
                                  job="repeats-more", rank=0, world_size=1)
    steps = 0
    with pytest.raises(tf.errors.UnknownError, match="all 2 epochs of this job are over"):
        for _ in dataset.repeat(3):
            steps += 1
    assert steps == 6


def test_keras_trains_on_it(broker, pairs):
    import penstock.tf

    def trained(job, repeat, **options):
        data = penstock.tf.dataset(pairs.repeat(2), features=("x", "y"),
                                   job=job, timeout_s=60)
        model = tf.keras.Sequential([tf.keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        if "steps_per_epoch" in options:
            options["steps_per_epoch"] = data.reader.steps_per_epoch
        steps = []
        options.setdefault("epochs", 2)
        model.fit(data.repeat() if repeat else data, verbose=0,
                  callbacks=[tf.keras.callbacks.LambdaCallback(
                      on_train_batch_end=lambda batch, logs: steps.append(batch))],
                  **options)
        data.reader.close()
        return steps

    assert trained("keras", False) == 2 * [0, 1, 2]
    with pytest.raises(tf.errors.UnknownError, match="all 2 epochs of this job"):
        trained("keras-too-many", False, epochs=3)
    assert trained("keras-steps", True, steps_per_epoch=None) == 2 * [0, 1, 2]


def test_its_element_spec_is_the_signature_of_a_function(broker, pairs):
    import penstock.tf

    data = penstock.tf.dataset(pairs, features=("x", "y"), job="tf-signature",
                               timeout_s=60)

    @tf.function(input_signature=list(data.element_spec))
    def step(x, y):
        return tf.reduce_sum(x) + tf.cast(tf.reduce_sum(y), tf.float32)

    @tf.function
    def epoch():
        total = 0.0
        for x, y in data:
            total += step(x, y)
        return total

    assert float(epoch()) == sum(range(24)) + sum(range(12))
    data.reader.close()


REPLICAS = """
import sys
import numpy as np
import penstock
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, 3 * [tf.config.LogicalDeviceConfiguration()])
import penstock.tf
strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2"])
data = penstock.Dataset.range(30).batch(12, last="partial").repeat(2)
data = penstock.tf.distribute(strategy, data, features=("value",), job="mirrored",
                              socket=sys.argv[1])

@tf.function
def train(value):
    def step(value):
        return tf.reduce_sum(value)
    return strategy.reduce("SUM", strategy.run(step, args=(value,)), axis=None)

assert len(data) == 3
for epoch in range(2):
    assert [int(train(value)) for value, in data] == [
        sum(range(12)), sum(range(12, 24)), sum(range(24, 30))]
data.close()
"""


def test_replicas_of_a_mirrored_strategy(broker):
    subprocess.run([sys.executable, "-c", REPLICAS, broker.socket], check=True,
                   timeout=240)
