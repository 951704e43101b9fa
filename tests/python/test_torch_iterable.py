"""penstock.torch.DataLoader takes an iterable dataset as PyTorch's does: the same
batches in the same order, iterated over once for all ranks of the host."""

import itertools
import os
import pathlib
import random
import signal
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import penstock
import pytest

torch = pytest.importorskip("torch")
data = torch.utils.data
import penstock.torch  # noqa: E402


pytestmark = pytest.mark.usefixtures("in_broker")


class Count(data.IterableDataset):
    """Numbers to a stop; each worker has those of its own residue."""

    def __init__(self, stop=23):
        self.stop = stop

    def __iter__(self):
        worker = data.get_worker_info()
        if worker is None:
            return iter(range(self.stop))
        return iter(range(worker.id, self.stop, worker.num_workers))


class Uneven(Count):
    """The first worker has one sample, the next one twelve more each."""

    def __iter__(self):
        worker = data.get_worker_info()
        return iter(range(100 * worker.id, 100 * worker.id + 1 + 12 * worker.id))


class Stateful(Count):
    """Says in a file which samples were made."""

    def __init__(self, stop, log):
        super().__init__(stop)
        self.log = log
        self.next = 0

    def __iter__(self):
        begin, self.next = self.next, 0
        for self.next in range(begin + 1, self.stop + 1):
            with open(self.log, "a") as file:
                file.write(f"{self.next - 1}\n")
            yield self.next - 1

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class OwnIterator(data.IterableDataset):
    """Is its own iterator, which begins anew where __iter__ is called."""

    def __iter__(self):
        self.next = 0
        return self

    def __next__(self):
        self.next += 1
        if self.next > 40:
            raise StopIteration
        return self.next

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


class Drawn(data.IterableDataset):
    def __iter__(self):
        for i in range(40):
            yield i, random.random(), np.random.rand(), float(torch.rand(()))


def lists(loader):
    return [batch.tolist() for batch in loader]


@pytest.mark.parametrize("options", [
    {"batch_size": 4}, {"batch_size": 4, "num_workers": 1},
    {"batch_size": 4, "num_workers": 3}, {"num_workers": 2},
    {"batch_size": 5, "num_workers": 2, "drop_last": True}], ids=str)
def test_batches_and_their_order_are_those_of_pytorch(options):
    wanted = lists(data.DataLoader(Count(), **options))
    loader = penstock.torch.DataLoader(Count(), **options)
    assert [lists(loader) for _ in range(3)] == [wanted] * 3


def test_samples_come_as_they_are_without_a_batch_size():
    loader = penstock.torch.DataLoader(Count(5), batch_size=None)
    assert list(loader) == list(range(5))


def test_workers_that_end_early_leave_their_turn_to_the_others():
    options = {"batch_size": 2, "num_workers": 4}
    wanted = lists(data.DataLoader(Uneven(), **options))
    assert lists(penstock.torch.DataLoader(Uneven(), **options)) == wanted


@pytest.mark.parametrize("taken", range(0, 25, 3))
def test_a_state_passes_over_what_was_delivered(taken):
    options = {"batch_size": 2, "num_workers": 4}
    wanted = lists(data.DataLoader(Uneven(), **options))
    loader = penstock.torch.DataLoader(Uneven(), **options)
    batches = iter(loader)
    for _ in range(min(taken, len(wanted))):
        next(batches)
    state = loader.state_dict()
    other = penstock.torch.DataLoader(Uneven(), **options)
    other.load_state_dict(state)
    assert lists(other) == wanted[taken:]
    assert lists(other) == wanted  # of the next epoch


def test_random_numbers_are_the_same_after_a_state():
    options = {"batch_size": 4, "num_workers": 2, "seed": 5}
    loader = penstock.torch.DataLoader(Drawn(), **options)
    batches = iter(loader)
    first = [next(batches) for _ in range(3)]
    state = loader.state_dict()
    rest = list(batches)
    other = penstock.torch.DataLoader(Drawn(), **options)
    other.load_state_dict(state)
    for one, again in zip(rest, other):
        assert all(torch.equal(a, b) for a, b in zip(one, again))
    values = torch.cat([batch[1] for batch in first + rest])
    assert len(set(values.tolist())) == len(values) == 80
    assert not torch.equal(next(iter(loader))[1], first[0][1])  # another epoch


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_dataset_that_keeps_a_state_goes_on_at_it(tmp_path, workers):
    log = tmp_path / "made"
    options = {"batch_size": 10, "num_workers": workers}
    loader = penstock.torch.DataLoader(Stateful(100, log), **options)
    batches = iter(loader)
    taken = [next(batches).tolist() for _ in range(6)]
    state = loader.state_dict()
    rest = lists(batches)
    assert len(taken + rest) == 10 * max(workers, 1)
    log.unlink()
    other = penstock.torch.DataLoader(Stateful(100, log), **options)
    other.load_state_dict(state)
    assert other.state_dict() == state
    assert lists(other) == rest
    made = list(map(int, log.read_text().split()))
    assert len(made) == sum(map(len, rest)), "samples before the state were made again"
    with pytest.raises(penstock.Error, match="the state is of"):
        another = penstock.torch.DataLoader(Stateful(100, log), num_workers=5)
        another.load_state_dict(state)
        next(iter(another))


def test_a_dataset_may_be_its_own_iterator():
    loader = penstock.torch.DataLoader(OwnIterator(), batch_size=3)
    batches = iter(loader)
    taken = [next(batches).tolist() for _ in range(5)]
    state = loader.state_dict()
    rest = lists(batches)
    assert sum(taken + rest, []) == list(range(1, 41))
    other = penstock.torch.DataLoader(OwnIterator(), batch_size=3)
    other.load_state_dict(state)
    assert lists(other) == rest


def test_loops_after_a_break_and_set_epoch():
    class Epochs(data.IterableDataset):
        epoch = 0

        def set_epoch(self, epoch):
            self.epoch = epoch

        def __iter__(self):
            return iter([self.epoch * 10 + i for i in range(6)])

    loader = penstock.torch.DataLoader(Epochs(), batch_size=2)
    assert lists(loader) == [[0, 1], [2, 3], [4, 5]]
    assert loader.epoch == 1 and loader.state_dict()["epoch"] == 1
    for batch in loader:
        break
    assert batch.tolist() == [10, 11]
    assert next(iter(loader)).tolist() == [20, 21]
    loader.set_epoch(7)
    assert lists(loader)[0] == [70, 71]
    loader.dataset.set_epoch(4)
    assert lists(loader)[2] == [44, 45]


def test_two_loops_at_once():
    loader = penstock.torch.DataLoader(Count(20), batch_size=2)
    assert [a.tolist() == b.tolist() for a, b in zip(loader, loader)] == [True] * 10


def ranks_of(count, name, make):
    """What each rank gets."""
    def run(rank):
        with make(rank=rank, world_size=count, local_world_size=count,
                  _name=name) as loader:
            return [[batch.tolist() for batch in loader] for _ in range(2)]
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def test_ranks_share_one_iteration_with_equal_steps(tmp_path):
    log = tmp_path / "made"
    dataset = Stateful(70, log)
    one, two, three = ranks_of(3, "three", lambda **ranks: penstock.torch.DataLoader(
        dataset, batch_size=10, timeout=60, **ranks))
    for epoch in range(2):
        steps = list(itertools.zip_longest(one[epoch], two[epoch], three[epoch]))
        assert [sum(step, []) for step in steps[:2]] == [
            list(range(30)), list(range(30, 60))]
        assert steps[2:] == [(list(range(60, 70)), [], [])]
    # Processes may have begun another epoch when the ranks left.
    assert len(log.read_text().split()) in range(140, 211)


@pytest.mark.parametrize("raises", ["sample", "iter", "collate"])
def test_an_exception_comes_as_its_type_after_the_batches_before_it(raises):
    class Raises(data.IterableDataset):
        def __iter__(self):
            if raises == "iter":
                raise KeyError("no data")
            return self.samples()

        def samples(self):
            yield from range(6)
            if raises == "sample":
                raise KeyError("no data")

    def collate(samples):
        if raises == "collate" and 4 in samples:
            raise KeyError("no data")
        return samples

    loader = iter(penstock.torch.DataLoader(Raises(), batch_size=2, collate_fn=collate))
    for wanted in {"sample": [[0, 1], [2, 3], [4, 5]], "iter": [],
                   "collate": [[0, 1], [2, 3]]}[raises]:
        assert next(loader) == wanted
    with pytest.raises(KeyError, match="no data"):
        next(loader)
    assert list(loader) == []


class Dies(Count):
    """Its process is killed once, at a sample."""

    def __init__(self, stop, at, mark, times=1):
        super().__init__(stop)
        self.at, self.mark, self.times = at, mark, times

    def __iter__(self):
        for i in super().__iter__():
            if i == self.at and len(list(self.mark.iterdir())) < self.times:
                (self.mark / str(time.monotonic_ns())).touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield i


@pytest.mark.parametrize("workers", [1, 3])
def test_a_process_that_ends_is_replaced_without_loss(tmp_path, workers):
    options = {"batch_size": 4, "num_workers": workers}
    wanted = lists(data.DataLoader(Count(100), **options))
    assert lists(penstock.torch.DataLoader(
        Dies(100, 57, tmp_path), **options)) == wanted


def test_processes_that_keep_ending_are_an_error(tmp_path):
    loader = iter(penstock.torch.DataLoader(Dies(20, 8, tmp_path, 99), batch_size=4))
    assert [next(loader).tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    with pytest.raises(penstock.Error, match="signal 9.*3 times"):
        next(loader)


class OfRank(Count):
    def __init__(self, rank):
        super().__init__()
        self.of_rank, self.scale = rank, np.array(2.0)


@pytest.mark.parametrize("make, what", [
    (lambda rank: dict(dataset=data.Subset(range(20), range(rank, 20, 2))), "indices"),
    (lambda rank: dict(dataset=range(20 + rank)), "dataset"),
    (lambda rank: dict(dataset=range(20), sampler=list(range(rank, 20, 2))), "sampler"),
    (lambda rank: dict(dataset=data.TensorDataset(torch.arange(20) + rank)),
     r"rows of dataset.tensors\[0\]"),
    (lambda rank: dict(dataset=data.TensorDataset(torch.arange(20).to(torch.bfloat16) + rank)),
     r"rows of dataset.tensors\[0\]"),
    (lambda rank: dict(dataset=[f"{i} of {rank}" for i in range(20)]), "rows of dataset"),
    (lambda rank: dict(dataset=data.Subset(np.full((20, 3), rank / 2), range(20))),
     "rows of dataset.dataset"),
    (lambda rank: dict(dataset=OfRank(rank)), "of_rank")])
def test_ranks_with_other_data(make, what, request):
    loaders = [penstock.torch.DataLoader(
        rank=rank, world_size=2, local_world_size=2, **make(rank),
        _name=f"other-{request.node.name[-6:]}-{abs(hash(what))}") for rank in range(2)]
    loaders[0].reader  # attaches
    if what == "of_rank":  # which may serve another purpose
        with pytest.warns(UserWarning, match=what):
            loaders[1].reader
    else:
        with pytest.raises(ValueError, match=what):
            loaders[1].reader


class Forgetful(Stateful):
    """Its state cannot be told from the third batch on."""

    def state_dict(self):
        if self.next > 4:
            raise ValueError("no state here")
        return super().state_dict()


def test_an_error_of_a_batch_that_nobody_is_at_yet(tmp_path, broker):
    """All consumers of a broadcast begin together: its error comes before the second."""
    dataset = Forgetful(400, tmp_path / "made")

    def make(rank):
        return penstock.torch.DataLoader(
            dataset, batch_size=2, num_workers=1, delivery="broadcast", timeout=60,
            rank=rank, world_size=2, local_world_size=2, _name="forgetful")

    def run(rank):
        time.sleep(3 * rank)
        with make(rank) as loader, pytest.raises(Exception, match="no state here"):
            list(loader)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))
    assert penstock.attach(penstock.Dataset.range(2).batch(1), socket=broker.socket,
                           job="after", rank=0, world_size=1).next()["value"].tolist() == [0]


class Again(Count):
    """Begins again when it has ended; a state is where it is."""

    def __init__(self, stop):
        super().__init__(stop)
        self.next = 0

    def __iter__(self):
        first = 100 * data.get_worker_info().id
        while self.next < self.stop + first // 10:
            self.next += 1
            yield first + self.next - 1
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


@pytest.mark.parametrize("taken", [5, 6])
def test_a_state_behind_an_iterators_last_batch(taken):
    loader = penstock.torch.DataLoader(Again(10), batch_size=4, num_workers=2)
    whole = [batch.tolist() for batch in loader]
    loader = penstock.torch.DataLoader(Again(10), batch_size=4, num_workers=2)
    got = [batch.tolist() for batch in itertools.islice(loader, taken)]
    other = penstock.torch.DataLoader(Again(10), batch_size=4, num_workers=2)
    other.load_state_dict(loader.state_dict())
    assert got + [batch.tolist() for batch in other] == whole


def test_a_batch_may_be_larger_than_those_before():
    class Growing(data.IterableDataset):
        def __iter__(self):
            for i in range(1, 8):
                yield torch.full((1 << (3 * i),), i, dtype=torch.uint8)

    sizes = [batch.numel() for batch in
             penstock.torch.DataLoader(Growing(), batch_size=None)]
    assert sizes == [1 << (3 * i) for i in range(1, 8)]
    with pytest.raises(penstock.Error, match="max_bytes"):
        list(penstock.torch.DataLoader(Growing(), batch_size=None, max_bytes=1 << 16))


def test_slow_samples_are_waited_for():
    class Slow(data.IterableDataset):
        def __iter__(self):
            yield 1
            time.sleep(3)
            yield 2

    assert list(penstock.torch.DataLoader(Slow(), batch_size=None)) == [1, 2]


def test_workers_know_who_they_are():
    class Who(data.IterableDataset):
        def __iter__(self):
            info = data.get_worker_info()
            yield ["none" if info is None else f"{info.id} of {info.num_workers}",
                   getattr(self, "told", None)]

    def tell(worker):
        data.get_worker_info().dataset.told = worker

    def told(**options):
        return list(penstock.torch.DataLoader(
            Who(), batch_size=None, worker_init_fn=tell, **options))

    assert told() == [["none", None]]
    assert told(num_workers=2) == [["0 of 2", 0], ["1 of 2", 1]]


def test_length():
    class Sized(Count):
        def __len__(self):
            return self.stop

    assert len(penstock.torch.DataLoader(Sized(23), batch_size=4)) == 6
    assert len(penstock.torch.DataLoader(Sized(23), batch_size=4, drop_last=True)) == 5
    assert len(list(penstock.torch.DataLoader(Sized(0)))) == 0
    with pytest.raises(TypeError, match="Count has no length"):
        len(penstock.torch.DataLoader(Count()))


class Undivided(Count):
    def __len__(self):
        return self.stop

    def __iter__(self):
        return iter(range(self.stop))


def test_more_batches_than_len_says_are_warned_of():
    loader = penstock.torch.DataLoader(Undivided(4), num_workers=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sum(1 for _ in loader) == 8 and len(loader) == 4
    with pytest.warns(UserWarning, match="is 4, by that of Undivided, and batch 5 has"):
        assert len(list(loader)) == 8


def test_more_workers_than_processors_are_warned_of():
    with pytest.warns(UserWarning, match="num_workers: 1000 processes on"):
        penstock.torch.DataLoader(Count(), num_workers=1000)


@pytest.mark.parametrize("options", [
    {"shuffle": True}, {"sampler": range(3)}, {"batch_sampler": [[1]]},
    {"on_error": "skip"}, {"batch_size": None, "drop_last": True}], ids=str)
def test_what_has_no_meaning_is_refused(options):
    with pytest.raises(ValueError):
        penstock.torch.DataLoader(Count(), **options)


def test_datapipes_are_refused_by_name():
    pipes = pytest.importorskip("torch.utils.data.datapipes.iter")
    with pytest.raises(TypeError, match="IterableWrapper.* is a datapipe"):
        penstock.torch.DataLoader(pipes.IterableWrapper([1]))


# ---- iterable datasets of other packages


def test_datasets_of_hugging_face(tmp_path):
    datasets = pytest.importorskip("datasets")
    from datasets.distributed import split_dataset_by_node
    whole = datasets.Dataset.from_dict({"x": list(range(64))})
    dataset = whole.to_iterable_dataset(num_shards=4).shuffle(seed=3, buffer_size=8)
    options = {"batch_size": 4, "num_workers": 2}

    def values(loader):
        return [batch["x"].tolist() for batch in loader]

    loader = penstock.torch.DataLoader(dataset, **options)
    first = values(loader)
    assert sorted(sum(first, [])) == list(range(64))
    second = values(loader)
    assert sorted(sum(second, [])) == list(range(64)) and second != first
    plain = whole.to_iterable_dataset(num_shards=4)
    loader = penstock.torch.DataLoader(plain, **options)
    batches = iter(loader)
    taken = [next(batches)["x"].tolist() for _ in range(5)]
    state = loader.state_dict()
    assert "iterators" in state
    other = penstock.torch.DataLoader(plain, **options)
    other.load_state_dict(state)
    assert taken + values(other) == values(data.DataLoader(plain, **options))
    # The ranks share it, whether or not it was split.
    parts = ranks_of(2, "split", lambda rank, **ranks: Values(
        split_dataset_by_node(plain, rank, 2), batch_size=4, rank=rank, **ranks))
    assert sorted(sum((sum(epochs[0], []) for epochs in parts), [])) == list(range(64))
    with pytest.raises(ValueError, match="split_dataset_by_node"):
        next(iter(penstock.torch.DataLoader(split_dataset_by_node(plain, 0, 3))))


class Values(penstock.torch.DataLoader):
    def __iter__(self):
        return (batch["x"] for batch in super().__iter__())


def test_webdataset(tmp_path):
    wds = pytest.importorskip("webdataset")
    for shard in range(4):
        with wds.TarWriter(str(tmp_path / f"{shard}.tar")) as out:
            for i in range(10):
                out.write({"__key__": f"{shard}{i}", "cls": 10 * shard + i})
    urls = sorted(map(str, pathlib.Path(tmp_path).glob("*.tar")))
    dataset = wds.WebDataset(urls, shardshuffle=False).decode().to_tuple("cls")
    options = {"batch_size": 5, "num_workers": 2}
    wanted = [batch[0].tolist() for batch in data.DataLoader(dataset, **options)]
    loader = penstock.torch.DataLoader(dataset, **options)
    assert [batch[0].tolist() for batch in loader] == wanted
    # Two ranks, which WebDataset would want a nodesplitter for.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RANK", "0")
        patch.setenv("WORLD_SIZE", "2")
        loader = penstock.torch.DataLoader(
            dataset, batch_size=5, rank=0, world_size=1, local_world_size=1)
        assert sum((batch[0].tolist() for batch in loader), []) == list(range(40))
