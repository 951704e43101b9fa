"""Makers in a Ray cluster: as many as there are rows to make, another one when a node dies, and the
same rows as without. Method: Ray's own cluster of several nodes on this machine; pictures whose
decoding is more than one worker does.

By hand, because Ray has 230 MB, and this takes a minute or two:

    tests/python/run --frameworks -- -k test_peek            # makes the environment
    build/python/venv/bin/pip install ray
    build/python/venv/bin/python -m pytest tests/python/test_ray.py
"""

import asyncio
import json
import time

import numpy as np
import penstock
import pytest
from PIL import Image

ray = pytest.importorskip("ray")
cluster_utils = pytest.importorskip("ray.cluster_utils")


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(7)
    for i in range(24):
        of_class = folder / "pictures" / str(i % 4)
        of_class.mkdir(parents=True, exist_ok=True)
        small = random.integers(0, 256, (40, 56, 3), dtype=np.uint8)
        Image.fromarray(small).resize((900, 640)).save(of_class / f"{i:03}.jpg", quality=95)
    path = folder / "train.yaml"
    path.write_text(json.dumps({
        "dataset": "pictures", "source": {"image_folder": {"path": str(folder / "pictures")}},
        "shuffle": {"seed": 3}, "epochs": "forever", "batch": {"size": 12},
        "map": [{"decode_image": {"crop": "random_resized", "size": [224, 224]}},
                {"normalize": {"mean": [0.5, 0.5, 0.5], "std": [0.25, 0.25, 0.25]}}]}))
    return str(path)


@pytest.fixture(scope="module")
def cluster():
    made = cluster_utils.Cluster(initialize_head=True,
                                 head_node_args={"num_cpus": 2, "include_dashboard": False})
    ray.init(address=made.address)
    yield made
    ray.shutdown()
    made.shutdown()


def test_makers_come_and_go(cluster, spec):
    import penstock.ray
    nodes = [cluster.add_node(num_cpus=1, resources={"makers": 1}) for _ in range(2)]
    cluster.wait_for_nodes()
    with penstock.ray.makers(min=0, max=2, cpus_per_maker=1, every_s=0.5,
                             placement={"resources": {"makers": 1}},
                             broker={"workers": 1}) as makers:

        @ray.remote(num_cpus=1)
        def train(over):
            """The sums of its batches, until the flag is set."""
            makers.join()
            sums = []
            with penstock.attach(spec) as reader:
                for batch in reader:
                    sums.append(float(np.abs(batch["image"]).sum()))
                    if ray.get(over.is_set.remote()):
                        break
            return sums

        over = Flag.remote()
        sums = train.remote(over)
        wait_for(makers, lambda status: len(status["addresses"]) == 2 and status["rows_per_s"])
        before = makers.status()["addresses"]
        cluster.remove_node(nodes.pop())
        wait_for(makers, lambda status: len(status["addresses"]) == 1)
        cluster.add_node(num_cpus=1, resources={"makers": 1})
        after = wait_for(makers, lambda status: len(status["addresses"]) == 2)["addresses"]
        assert len(set(after) & set(before)) == 1
        wait_for(makers, lambda status: status["rows_per_s"])
        ray.get(over.set.remote())
        sums = ray.get(sums)
        wait_for(makers, lambda status: not status["addresses"])
    with penstock.broker(workers=2), penstock.attach(spec) as reader:
        alone = [float(np.abs(batch["image"]).sum()) for _, batch in zip(sums, reader)]
    assert sums == alone
    assert len(sums) > 20


def test_as_many_as_there_are_rows_to_make():
    import penstock.ray
    size, there, numbers = penstock.ray._Size(0, 8), 0, []
    for look in range(400):  # a maker makes 100 rows a second, and is there a look later
        demand = 450 if look < 150 else 150 if look < 300 else 0
        size.look(there, 50 if demand > 100 * there else 0, min(demand, 100 * there))
        there = size.number
        numbers.append(there)
    assert max(numbers) == numbers[149] == 6
    assert set(numbers[20:150]) == {6}
    assert numbers[299] == 3 and numbers[-1] == 0
    assert sorted(numbers[150:], reverse=True) == numbers[150:]


def test_a_broker_that_does_not_answer_stays():
    from penstock.ray import _Host, _Pool, _Size
    host = _Host({}, "/nowhere/penstock.sock", {"token": "", "certificates": None})
    try:
        assert host.look([]) is None
    finally:
        host._link._process.kill()

    def told(error):
        """Whether the node of an actor that says this is kept."""
        class Asked:
            actor = host

            async def ask(self, *_):
                raise error
        pool = _Pool(_Size(0, 1), {}, {}, None, {})
        pool._hosts["node"] = Asked()
        assert asyncio.run(pool._tell("node", [])) == {"wanted": 0, "rows": {}}
        return "node" in pool._hosts

    assert told(ray.exceptions.RayTaskError("look", "", ValueError()))
    assert told(ray.exceptions.ActorUnavailableError("for now", None))
    assert not told(ray.exceptions.ActorDiedError())
    assert not told(ray.exceptions.ActorUnschedulableError("no node"))


def test_no_more_makers_than_a_link_takes():
    import penstock.ray
    with pytest.raises(penstock.errors.InvalidArgument, match="max=257: wanted 1 to 256"):
        penstock.ray.makers(max=257)


@ray.remote(num_cpus=0)
class Flag:
    def __init__(self):
        self.value = False

    def set(self):
        self.value = True

    def is_set(self):
        return self.value


def wait_for(makers, condition, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        status = makers.status()
        if status and condition(status):
            return status
        time.sleep(0.2)
    raise AssertionError(f"it has not happened: {makers.status()}")
