"""penstock.torch.DataLoader takes a map-style dataset as PyTorch's does: the same
batches, whatever the dataset is, and ranks of one launch share one broker."""

import collections
import copy
import dataclasses
import itertools
import json
import os
import pathlib
import pickle
import random
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import penstock
import pytest

torch = pytest.importorskip("torch")
data = torch.utils.data
import penstock.torch  # noqa: E402


pytestmark = pytest.mark.usefixtures("in_broker")


class Nested(data.Dataset):
    def __init__(self, count=50):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return {"x": torch.full((3,), float(i)), "name": f"name {i}",
                "pair": (i, i / 2, i % 2 == 0), "half": np.float16(i)}


class Ragged(data.Dataset):
    def __len__(self):
        return 30

    def __getitem__(self, i):
        return torch.arange(i + 1)


class Augmented(data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, i):
        return i, torch.rand(2), random.random(), np.random.rand()


def pad(rows):
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


PAIRS = data.TensorDataset(torch.arange(1000).float().reshape(100, 10),
                           torch.arange(100))


@pytest.mark.parametrize("dataset, options", [
    (Nested(), {"batch_size": 8}),
    (Nested(), {"batch_size": 8, "drop_last": True, "num_workers": 1}),
    (PAIRS, {}),
    (data.Subset(PAIRS, [5, 3, 90]), {"batch_size": 2}),
    (data.ConcatDataset([PAIRS, PAIRS]), {"batch_size": 64}),
    (Ragged(), {"batch_size": 4, "collate_fn": pad}),
    (Ragged(), {"batch_size": 4, "collate_fn": lambda rows: [len(r) for r in rows]}),
], ids=["nested", "drop_last", "tensors", "subset", "concat", "ragged", "lambda"])
def test_batches_are_those_of_pytorch(dataset, options):
    wanted = list(data.DataLoader(dataset, **{**options, "num_workers": 0}))
    loader = penstock.torch.DataLoader(dataset, **options)
    assert len(loader) == len(wanted)
    count = 0
    for batch, like in zip(loader, wanted):
        assert same(batch, like), (batch, like)
        count += 1
    assert count == len(wanted)


def test_each_loop_is_an_epoch_also_after_a_break():
    loader = penstock.torch.DataLoader(PAIRS, 10, shuffle=True, seed=4)
    orders = []
    for stop in (10, 3, 10):
        order = []
        for step, (_, y) in enumerate(loader, 1):
            order += y.tolist()
            if step == stop:
                break
        orders.append(order)
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(100))
    assert orders[0] != orders[2] and orders[0][:30] != orders[1]


def test_training_and_validation_in_turn():
    train, validation = data.random_split(
        PAIRS, [80, 20], torch.Generator().manual_seed(1))
    training = penstock.torch.DataLoader(train, 16, shuffle=True)
    validating = penstock.torch.DataLoader(validation, 16)
    for _ in range(3):
        assert sum(len(y) for _, y in training) == 80
        assert [len(y) for _, y in validating] == [16, 4]


def test_random_numbers_are_those_of_the_sample_and_the_epoch():
    def epochs(workers, batch_size):
        loader = penstock.torch.DataLoader(Augmented(), batch_size, seed=7,
                                           num_workers=workers)
        return [{int(i): (a.tolist(), float(b), float(c)) for batch in loader
                 for i, a, b, c in zip(*batch)} for _ in range(2)]

    first = epochs(1, 40)
    assert first == epochs(2, 3)
    assert first[0] != first[1] and len({str(row) for row in first[0].values()}) == 40


class Gaussian(data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return i, np.random.randn()


def test_a_gaussian_number_that_is_left_over_is_no_rows():
    def values(workers, batch_size):
        # randn makes two and keeps the second.
        loader = penstock.torch.DataLoader(
            Gaussian(), batch_size, seed=7, num_workers=workers,
            worker_init_fn=lambda _: np.random.randn())
        return {int(i): float(x) for batch in loader for i, x in zip(*batch)}

    assert values(1, 6) == values(2, 1)


def test_what_means_nothing_is_said_once():
    with pytest.warns(UserWarning, match="persistent_workers, prefetch_factor mean "
                                         "nothing here"):
        penstock.torch.DataLoader(PAIRS, 10, num_workers=1, persistent_workers=True,
                                  prefetch_factor=2)


@pytest.mark.parametrize("options, says", [
    ({"shuffle": True, "sampler": [1]}, "both give the order"),
    ({"batch_sampler": [[1]], "batch_size": 2}, "batch_sampler says batch_size"),
    ({"num_workers": 0, "prefetch_factor": 2}, "num_workers > 0"),
    ({"num_workers": -1}, "num_workers: wanted a whole number from 0, found -1"),
    ({"timeout": -1}, "timeout: wanted seconds from 0, found -1"),
    ({"shuffle": "yes"}, "shuffle: wanted True or False, found 'yes'"),
    ({"batch_size": None, "drop_last": True}, "drop_last has no meaning"),
    ({"features": ["x"]}, "features: they are those of a spec"),
])
def test_options_that_contradict(options, says):
    with pytest.raises((TypeError, ValueError), match=says):
        penstock.torch.DataLoader(PAIRS, **options)


def test_attributes_are_those_of_pytorch():
    loader = penstock.torch.DataLoader(PAIRS, 30, shuffle=True)
    assert type(loader.sampler) is data.RandomSampler
    assert type(penstock.torch.DataLoader(PAIRS).sampler) is data.SequentialSampler
    for name in ("dataset", "batch_size", "sampler", "drop_last", "batch_sampler"):
        with pytest.raises(ValueError, match=name):
            setattr(loader, name, None)
    loop = iter(loader)
    assert iter(loop) is loop and len(loop) == 4 == len(list(loop))


@pytest.mark.parametrize("options, says", [
    ({"batch_size": 0}, "batch_size: wanted a whole number from 1, found 0"),
    ({"batch_size": "4"}, "found '4'"),
    ({"batch_sice": 4}, "has no argument 'batch_sice'"),
])
def test_options_that_are_wrong(options, says):
    with pytest.raises((TypeError, ValueError), match=says):
        penstock.torch.DataLoader(PAIRS, **options)


def test_an_iterable_dataset_that_has_positions():
    class Both(data.IterableDataset):
        def __iter__(self):
            return iter(())

        def __len__(self):
            return 6

        def __getitem__(self, index):
            return index

    with penstock.torch.DataLoader(Both(), batch_size=4) as loader:
        assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5]]


def test_masks_of_pillow():
    image = pytest.importorskip("PIL.Image")
    white = image.new("1", (4, 2), 1)

    class Masks:
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return white

    with penstock.torch.DataLoader(Masks(), batch_size=3) as loader:
        for mask in loader:
            assert mask.dtype == torch.bool and mask.all()
            assert mask.numpy().view(np.uint8).max() == 1



def test_a_state_goes_on_in_the_middle_of_an_epoch():
    loader = penstock.torch.DataLoader(PAIRS, 10, shuffle=True)
    whole = [y.tolist() for _, y in loader] + [y.tolist() for _, y in loader]
    for step, (_, y) in enumerate(loader, 1):
        if step == 4:
            state = loader.state_dict()
            break
    loader.load_state_dict({**state, "epoch": 0})
    rest = [y.tolist() for _, y in loader]
    assert rest == whole[4:10]


def test_a_state_is_of_the_data_not_of_one_loader():
    whole = [y.tolist() for _, y in penstock.torch.DataLoader(PAIRS, 10, shuffle=True)]
    loader = penstock.torch.DataLoader(PAIRS, 10, shuffle=True)
    for step, _ in enumerate(loader, 1):
        if step == 3:
            state = loader.state_dict()
            break
    other = penstock.torch.DataLoader(PAIRS, 10, shuffle=True)
    other.load_state_dict(state)
    assert [y.tolist() for _, y in other] == whole[3:]


def test_a_loop_may_keep_its_batches():
    batches = list(penstock.torch.DataLoader(PAIRS, 10))
    assert [y.tolist() for _, y in batches] == [
        list(range(i, i + 10)) for i in range(0, 100, 10)]


def test_set_epoch_says_which_epoch_the_next_loop_is_of():
    loader = penstock.torch.DataLoader(PAIRS, 10, shuffle=True)
    epochs = [[y.tolist() for _, y in loader] for _ in range(3)]
    for epoch, stop in ((1, 4), (1, 10), (0, 10), (2, 10)):
        loader.set_epoch(epoch)
        order = []
        for _, y in loader:
            order.append(y.tolist())
            if len(order) == stop:
                break
        assert order == epochs[epoch][:stop]
    loader.set_epoch(1)
    batches = iter(loader)
    next(batches)
    loader.load_state_dict(loader.state_dict())
    loader.set_epoch(1)
    assert [y.tolist() for _, y in loader] == epochs[1][1:], "goes on with the state"


def test_a_break_at_the_last_batch_passes_no_epoch_over():
    loader = penstock.torch.DataLoader(PAIRS, 50, shuffle=True)
    epochs = [[y.tolist() for _, y in loader] for _ in range(3)]
    loader.set_epoch(0)
    for epoch in epochs:
        order = []
        for step, (_, y) in enumerate(loader, 1):
            order.append(y.tolist())
            if step == len(loader):
                break
        assert order == epoch


def test_a_state_may_come_before_the_first_loop():
    loader = penstock.torch.DataLoader(PAIRS, 10, shuffle=True)
    epochs = [[y.tolist() for _, y in loader] for _ in range(2)]
    loader.set_epoch(1)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    other = penstock.torch.DataLoader(PAIRS, 10, shuffle=True)
    other.load_state_dict(json.dumps(state))
    assert [y.tolist() for _, y in other] == epochs[1][1:]


def test_a_loop_inside_of_a_loop_over_the_same_loader():
    loader = penstock.torch.DataLoader(PAIRS, 50)
    assert next(iter(loader))[1].shape == (50,)
    outer = iter(loader)
    next(outer)
    assert len(list(loader)) == 2, "PyTorch's tutorials leave iterators alive"
    assert next(outer)[1].shape == (50,) and next(outer, None) is None
    pairs = [(a[1].tolist(), b[1].tolist()) for a, b in zip(loader, loader)]
    assert sorted(sum((a for a, _ in pairs), [])) == list(range(100))
    assert sorted(sum((b for _, b in pairs), [])) == list(range(100))


def test_a_state_of_the_last_batch_leaves_none():
    loader = penstock.torch.DataLoader(PAIRS, 50, shuffle=True)
    epochs = [[y.tolist() for _, y in loader] for _ in range(3)]
    loader.set_epoch(0)
    for _ in loader:
        state = loader.state_dict()

    def resumed(*calls):
        other = penstock.torch.DataLoader(PAIRS, 50, shuffle=True)
        other.load_state_dict(json.dumps(state))
        for call in calls:
            call(other)
        return other

    other = resumed()
    assert other.epoch == 0 and other.state_dict() == state
    assert [[y.tolist() for _, y in other] for _ in range(3)] == [[], *epochs[1:]]
    other = resumed(lambda loader: loader.set_epoch(0))
    assert list(other) == [] and [y.tolist() for _, y in other] == epochs[1]
    other = resumed(lambda loader: loader.set_epoch(2))
    assert [y.tolist() for _, y in other] == epochs[2]


def test_a_loader_of_pytorch_over_a_loader():
    loader = penstock.torch.DataLoader(PAIRS, 10)
    around = data.DataLoader(loader, batch_size=None)
    assert len(around) == 10
    assert [i for _, y in around for i in y.tolist()] == list(range(100))
    with pytest.raises(Exception, match="num_workers=0"):
        list(data.DataLoader(loader, batch_size=None, num_workers=1))
    assert len(loader.batch_sampler) == 10
    assert type(loader.batch_sampler.sampler) is data.SequentialSampler
    with pytest.raises(penstock.FailedPrecondition, match="resume by state_dict"):
        iter(loader.batch_sampler)


class Indices(data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return i


@pytest.mark.parametrize("count, options", [(0, {}), (3, {"drop_last": True}),
                                            (3, {"sampler": []})])
def test_a_dataset_without_a_batch_is_an_empty_loop(count, options):
    loader = penstock.torch.DataLoader(Indices(count), 10, **options)
    assert len(loader) == 0 and list(loader) == [] and list(loader) == []


class Nothing:
    def __getitem__(self, i):
        return i


def test_a_dataset_without_a_length():
    with pytest.raises(TypeError, match="^Nothing has no __len__: wanted a map-style"):
        penstock.torch.DataLoader(Nothing())


Pair = collections.namedtuple("Pair", "left, right")


class Keys(data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return {"a.b": i, "a": {"b": -i, "t": "x" * i, "t_bytes": 2 * i}, 3: i / 2,
                "3": i, None: i, "pair": Pair(i, Pair(np.zeros(2), f"{i}"))}


def test_keys_and_namedtuples_are_those_of_pytorch():
    wanted = list(data.DataLoader(Keys(), 4))
    for batch, like in zip(penstock.torch.DataLoader(Keys(), 4), wanted):
        assert same(batch, like), (batch, like)
        assert type(batch["pair"]) is type(batch["pair"].right) is Pair


class Outer:
    Inner = collections.namedtuple("Inner", "x, y")  # whose __qualname__ is Inner


def test_classes_are_those_of_the_rank():
    Local = collections.namedtuple("Local", "x, y")

    class Of(data.Dataset):
        def __init__(self, kind):
            self.kind = kind

        def __len__(self):
            return 2

        def __getitem__(self, i):
            return self.kind(x=i, y=-i)

    for kind in (Local, Outer.Inner, collections.OrderedDict):
        batch, = penstock.torch.DataLoader(Of(kind), 2)
        like, = data.DataLoader(Of(kind), 2)
        assert type(batch) is type(like) and same(batch, like)


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=str)
def test_nested_tensors(layout):
    rows = [torch.nested.nested_tensor([torch.arange(i + 1.0), torch.zeros(2)],
                                       layout=layout) for i in range(4)]
    loader = penstock.torch.DataLoader(rows, batch_size=1, collate_fn=lambda batch: batch[0])
    for batch, like in zip(loader, rows):
        assert batch.is_nested
        assert all(map(torch.equal, batch.unbind(), like.unbind()))


Lengths = [5, 40, 300, 2000, 7, 9000]


class Long(data.Dataset):
    def __len__(self):
        return len(Lengths)

    def __getitem__(self, i):
        return torch.ones(Lengths[i], dtype=torch.long)


def test_batches_are_of_any_size():
    assert [tuple(batch.shape) for batch in penstock.torch.DataLoader(
        Long(), 2, collate_fn=pad)] == [(2, 40), (2, 2000), (2, 9000)]


class Sudden(data.Dataset):
    def __len__(self):
        return 12

    def __getitem__(self, i):
        return torch.full(((8 << 20) if i == 7 else 3,), i)


def test_a_batch_far_larger_than_the_others():
    with penstock.torch.DataLoader(Sudden(), None) as loader:
        for i, row in enumerate(loader):
            assert len(row) == ((8 << 20) if i == 7 else 3) and (row == i).all()
    with penstock.torch.DataLoader(Sudden(), None, max_bytes=1 << 20) as loader:
        with pytest.raises(ValueError, match=r"a batch has 671\d+ bytes; at most 1048576"
                                             r" are allowed \(max_bytes=\)"):
            list(loader)


def test_a_batch_of_many_rows():
    batches = list(penstock.torch.DataLoader(Indices(25000), 12000))
    assert [len(batch) for batch in batches] == [12000, 12000, 1000]
    assert torch.equal(torch.cat(batches), torch.arange(25000))


def test_samples_that_are_not_batched():
    rows = [np.arange(3), {"x": 1.5}, "text"]
    for row, like in zip(penstock.torch.DataLoader(rows, batch_size=None),
                         data.DataLoader(rows, batch_size=None), strict=True):
        assert same(row, like)


def test_a_batch_without_samples_goes_to_collate_fn():
    sizes = [2, 3, 0, 1]
    batches, end = [], 0
    for size in sizes:
        batches.append(list(range(end, end + size)))
        end += size
    loader = penstock.torch.DataLoader(Indices(6), batch_sampler=batches, collate_fn=len)
    assert list(loader) == sizes


class Fetched(data.Dataset):
    def __len__(self):
        return 8

    def __getitems__(self, indices):
        return torch.tensor(indices)


def test_what_getitems_returns_goes_to_collate_fn_as_it_is():
    Fetched.__getitem__ = lambda self, i: torch.tensor(i)
    loader = penstock.torch.DataLoader(Fetched(), 4, collate_fn=lambda batch: batch)
    assert [batch.tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7]]


class Stops(Indices):
    def __getitem__(self, i):
        if i == 5:
            raise StopIteration("no more")
        return super().__getitem__(i)


def test_a_sample_that_raises_stop_iteration_ends_no_loop():
    with pytest.raises(RuntimeError, match="StopIteration: no more"):
        list(penstock.torch.DataLoader(Stops(8), 2))


def test_tensors_have_a_storage_each():
    rows = data.TensorDataset(torch.arange(8), torch.zeros(8, 0, dtype=torch.int64))
    for numbers, empty in penstock.torch.DataLoader(rows, 4):
        assert len(pickle.dumps(numbers)) < 1000
        assert numbers.untyped_storage().nbytes() == 32
        assert empty.shape == (4, 0)
    assert [row.numel() for row in penstock.torch.DataLoader(
        [torch.zeros(0, dtype=torch.int64), torch.zeros(3)], batch_size=None)] == [0, 3]


class Drawn(Indices):
    def __getitem__(self, i):
        return self.start


def drawn_at_start(worker):
    data.get_worker_info().dataset.start = (
        torch.initial_seed(), data.get_worker_info().seed, torch.rand(()).item(),
        np.random.rand())


def test_each_worker_has_a_seed_of_its_own():
    loader = penstock.torch.DataLoader(Drawn(64), batch_size=None, num_workers=2,
                                       worker_init_fn=drawn_at_start)
    starts = set(map(tuple, loader))
    assert len(starts) == 2
    for seed, told, _, _ in starts:
        assert seed == told
    for part in zip(*starts):
        assert len(set(part)) == 2


def test_a_loop_that_ends_with_the_interpreter_is_silent(tmp_path):
    (tmp_path / "loop.py").write_text("import penstock.torch\n"
                                      "loader = penstock.torch.DataLoader(range(9))\n"
                                      "loop = iter(loader)\nnext(loop)\n")
    run = subprocess.run([sys.executable, tmp_path / "loop.py"], text=True,
                         capture_output=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, "")


def test_a_loader_leaves_no_file(broker):
    folder = pathlib.Path(broker.socket).parent / "datasets"
    before = set(folder.glob("*")) if folder.exists() else set()
    data_set = data.TensorDataset(torch.zeros(64, 1024))
    loaders = [penstock.torch.DataLoader(data_set, 8, job=f"files-{i}", _name="files",
                                         rank=0, world_size=1) for i in range(2)]
    for loader in loaders:
        next(iter(loader))
    assert set(folder.glob("*")) > before
    loaders[0].close()  # the other one's processes may need it yet
    assert set(folder.glob("*.pickle")) > before
    loaders[1].close()
    assert set(folder.glob("*")) == before


def test_samples_that_cannot_be_made_are_left_out_or_replaced():
    class Bad(data.Dataset):
        def __len__(self):
            return 9

        def __getitem__(self, i):
            if i in (1, 5, 6, 7, 8):
                raise OSError("no such picture")
            return i

    def batches(on_error):
        loader = penstock.torch.DataLoader(Bad(), 3, on_error=on_error)
        return [batch.tolist() for batch in loader]

    assert batches("skip") == [[0, 2], [3, 4], []]
    with pytest.raises(OSError, match="(?s)sample 6.*no other sample of its batch"):
        batches("substitute")


def test_killed_processes_cost_no_batch():
    class Slow(data.Dataset):
        def __len__(self):
            return 600

        def __getitem__(self, i):
            time.sleep(0.002)
            return i, os.getpid()

    counts = np.zeros(600, int)
    kills = 0
    for step, (rows, pids) in enumerate(penstock.torch.DataLoader(
            Slow(), 4, num_workers=2, collate_fn=data.default_collate)):
        counts[rows.numpy()] += 1
        if step % 20 == 5:
            try:
                os.kill(int(pids[0]), signal.SIGKILL)
                kills += 1
            except ProcessLookupError:
                pass
    assert (counts == 1).all() and kills > 3


class Wide(data.Dataset):
    def __len__(self):
        return 3

    def __getitem__(self, i):
        return {str(key): i for key in range(65)}


def test_more_features_than_a_job_has():
    assert len(next(iter(penstock.torch.DataLoader(Wide(), 2)))) == 65


class Faulty(data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return {"x": 1 // (i - 3)}


def test_a_sample_that_raises_is_told_with_the_way_out():
    with pytest.raises(ZeroDivisionError, match="(?s)sample 3.*on_error") as failure:
        list(penstock.torch.DataLoader(Faulty(), 2))
    assert isinstance(failure.value.__cause__, penstock.DataLoss)
    assert "in the spec" not in str(failure.value)
    assert str(failure.value).count("Faulty") == 1, failure.value
    with pytest.raises(ZeroDivisionError, match="sample 1: of index 3: Traceback"):
        list(penstock.torch.DataLoader(Faulty(), 2, sampler=[5, 3]))
    loader = penstock.torch.DataLoader(Faulty(), 2, on_error="skip")
    assert sum(len(batch["x"]) for batch in loader) == 5


class Coded(Exception):
    def __init__(self, code, text):
        super().__init__(code, text)


class Raising(data.Dataset):
    """Raises at the first sample, or at a later one."""

    def __init__(self, error, at):
        self.error, self.at = error, at

    def __len__(self):
        return 6

    def __getitem__(self, i):
        if i == self.at:
            raise self.error
        return i


@pytest.mark.parametrize("at", [0, 4])
@pytest.mark.parametrize("error, kind", [
    (KeyError("one"), KeyError), (OSError("two\nlines: three"), OSError),
    (json.JSONDecodeError("four", "five", 0), penstock.Error),
    (Coded(6, "seven"), penstock.Error)], ids=lambda value: str(value)[:3])
def test_an_exception_is_of_the_type_that_was_raised(error, kind, at):
    with pytest.raises(kind, match="in __getitem__\n.*raise self.error\n"):
        list(penstock.torch.DataLoader(Raising(error, at), 2))


def test_good_batches_come_before_an_error():
    class Late(data.Dataset):
        def __len__(self):
            return 12

        def __getitem__(self, i):
            time.sleep(0.2 * (i < 6))  # the bad one is made first
            if i == 8:
                raise KeyError(i)
            return i

    rows, loop = [], iter(penstock.torch.DataLoader(Late(), 2, num_workers=3))
    with pytest.raises(KeyError):
        for batch in loop:
            rows += batch.tolist()
    assert rows == list(range(8))
    assert [batch.tolist() for batch in loop] == [[10, 11]], "it goes on, as PyTorch's"


class Workers(data.Dataset):
    opened = None

    def __len__(self):
        return 30

    def __getitem__(self, i):
        info = data.get_worker_info()
        assert info.dataset is self
        return self.opened[i], info.id, info.num_workers, info.seed

    def open(self, worker):
        assert data.get_worker_info().id == worker
        self.opened = np.arange(30)


def test_a_worker_is_told_before_its_first_sample():
    dataset = Workers()
    loader = penstock.torch.DataLoader(dataset, 5, num_workers=2, seed=40,
                                       worker_init_fn=dataset.open)
    rows = [row for batch in loader for row in zip(*map(torch.Tensor.tolist, batch))]
    assert [i for i, *_ in rows] == list(range(30))
    assert {row[1:] for row in rows} <= {(0, 2, 40), (1, 2, 41)}


@dataclasses.dataclass
class Point:
    x: int


class Anything(data.Dataset):
    def __len__(self):
        return 6

    def __getitem__(self, i):
        return {"point": Point(i), "raw": b"x" * i}


def test_samples_of_any_kind_go_to_collate_fn():
    loader = penstock.torch.DataLoader(Anything(), 2, collate_fn=lambda rows: rows)
    assert [row for batch in loader for row in batch] == [
        {"point": Point(i), "raw": b"x" * i} for i in range(6)]


def test_a_child_that_the_dataset_keeps_holds_nothing_up():
    class Forks(data.Dataset):
        def __len__(self):
            return 4

        def __getitem__(self, i):
            if os.fork() == 0:
                time.sleep(600)
                os._exit(0)
            return i

    begin = time.monotonic()
    assert [b.tolist() for b in penstock.torch.DataLoader(Forks(), 2)] == [[0, 1], [2, 3]]
    assert time.monotonic() - begin < 300


def test_what_cannot_be_pickled_is_told_with_the_way_out():
    class Opened(data.Dataset):
        def __init__(self):
            self.lock = threading.Lock()

        def __len__(self):
            return 1

    with pytest.raises(TypeError, match="Opened.lock cannot be pickled .*in __getitem__"):
        next(iter(penstock.torch.DataLoader(Opened())))


def test_a_broker_that_is_killed_costs_no_sample(broker):
    class Slow(data.Dataset):
        def __len__(self):
            return 200

        def __getitem__(self, i):
            time.sleep(0.005)
            return i

    loader = penstock.torch.DataLoader(Slow(), 5, shuffle=True)
    seen = []
    for step, ids in enumerate(loader):
        seen += ids.tolist()
        if step == 8:
            folder = os.path.dirname(broker.socket)
            for process in pathlib.Path("/proc").glob("[0-9]*"):
                try:
                    command = (process / "cmdline").read_bytes()
                except OSError:
                    continue
                if b"penstockd\0" in command and folder.encode() in command:
                    os.kill(int(process.name), signal.SIGKILL)
                    break
            else:
                pytest.fail("no penstockd")
    assert sorted(seen) == list(range(200))


def test_memory_maps_and_arrays_are_not_copied(tmp_path, broker):
    class Mapped(data.Dataset):
        def __init__(self, array):
            self.array = array

        def __len__(self):
            return len(self.array)

        def __getitem__(self, i):
            return torch.from_numpy(np.array(self.array[i])), i

    np.save(tmp_path / "a.npy", np.arange(4000, dtype=np.float32).reshape(1000, 4))
    mapped = np.load(tmp_path / "a.npy", mmap_mode="r")
    folder = pathlib.Path(broker.socket).parent / "datasets"
    for array, copied in ((mapped, False), (mapped[100:], False),
                          (np.array(mapped), True), (mapped[:, ::2], True)):
        with penstock.torch.DataLoader(Mapped(array), 128, shuffle=True) as loader:
            for x, i in loader:
                assert (x.numpy() == array[i.numpy()]).all()
            file, = folder.glob("Mapped*.pickle")
            assert (file.stat().st_size > 12000) == copied


def command_of(process):
    with open(f"/proc/{process}/cmdline", "rb") as file:
        return file.read()


class Held(data.Dataset):
    """Samples say whether their process was forked from one with the dataset."""

    def __init__(self, held):
        self.held = held

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return command_of("self") == command_of(os.getppid())


def memory_map(folder):
    np.save(folder / "a.npy", np.zeros(10000))
    return np.load(folder / "a.npy", mmap_mode="r")


@pytest.mark.parametrize("held", [
    lambda _: [str(i) for i in range(100000)], lambda _: np.zeros(1024),
    lambda _: torch.zeros(4 << 20), lambda _: [np.zeros(4096), torch.zeros(4096)],
    memory_map], ids=["list", "array", "tensor", "both", "map"])
@pytest.mark.parametrize("by", ["program", "broker"])
def test_processes_share_what_the_dataset_holds(tmp_path, monkeypatch, held, by):
    monkeypatch.setattr(penstock.template, "can_fork", lambda: by == "program")
    loader = penstock.torch.DataLoader(Held(held(tmp_path)), 4, num_workers=2)
    assert all(forked for batch in loader for forked in batch.tolist())


def parent_of(process):
    with open(f"/proc/{process}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


class Parents(data.Dataset):
    """Samples say who forked their process."""

    def __len__(self):
        return 300

    def __getitem__(self, i):
        time.sleep(0.002)
        return i, os.getppid()


def test_a_template_that_is_killed_costs_no_batch():
    counts = np.zeros(300, int)
    parents = set()
    for step, (rows, (parent, *_)) in enumerate(penstock.torch.DataLoader(
            Parents(), 4, num_workers=2, collate_fn=data.default_collate)):
        counts[rows.numpy()] += 1
        if step == 3:
            template = parent_of(int(parent))
            assert command_of(template) == command_of("self") and template != os.getpid()
            os.kill(template, signal.SIGKILL)
            os.kill(int(parent), signal.SIGKILL)
        parents.add(int(parent))
    assert (counts == 1).all() and len(parents) > 1


def test_a_template_goes_with_its_loader():
    loader = penstock.torch.DataLoader(Parents(), 4)
    template = parent_of(int(next(iter(loader))[1][0]))
    loader.close()
    for _ in range(100):
        if not os.path.exists(f"/proc/{template}"):
            return
        time.sleep(0.1)
    raise AssertionError("it is still there after 10 s")


def test_processes_share_no_position_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(penstock.template, "can_fork", lambda: False)

    class Opened:
        def __setstate__(self, _):
            self.file = open(tmp_path / "a", "wb")

        def __getstate__(self):
            return 1

    loader = penstock.torch.DataLoader(Held(Opened()), 4, num_workers=2)
    assert not any(forked for batch in loader for forked in batch.tolist())


SCRIPT = """
import json, os, sys, time
import torch
from torch.utils.data import Dataset, DistributedSampler
import penstock.torch


class Backwards(DistributedSampler):
    def __iter__(self):
        return reversed(list(super().__iter__()))


class Squares(Dataset):  # of __main__
    def __init__(self, count=101):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, i):
        return i, i * i


def main(rank=os.environ.get("RANK", 0), spawned=None):
    loader = penstock.torch.DataLoader(Squares(), batch_size=8, shuffle=True)
    if spawned is not None:
        torch.distributed.init_process_group(
            "gloo", init_method=spawned, rank=rank, world_size=2)
    if int(rank) == 0:
        mine = penstock.torch.DataLoader(Squares(), batch_size=8)
    validation = penstock.torch.DataLoader(Squares(), batch_size=8)
    ranks = int(os.environ.get("WORLD_SIZE", 2 if spawned else 1))
    for kind, count in ((DistributedSampler, 101 // ranks), (Backwards, 51)):
        sampler = kind(Squares(), ranks, int(rank), shuffle=False, drop_last=True)
        part = penstock.torch.DataLoader(Squares(), batch_size=8, sampler=sampler)
        mine = [i for batch in part for i in batch[0].tolist()]
        if kind is Backwards:
            assert mine == list(sampler), mine
        else:
            assert abs(len(mine) - count) < 8 and max(mine) < count * ranks, mine
    few = penstock.torch.DataLoader(Squares(17), batch_size=8)
    shapes = [tuple(i.shape) for i, _ in few]
    assert shapes == [[(8,), (8,), (1,)], [(8,), (1 - int(rank),)]][ranks - 1], shapes
    rows = []
    for epoch in range(2):
        for i, square in loader:
            rows += [[epoch, *pair] for pair in zip(i.tolist(), square.tolist())]
        assert len(list(map(len, validation))) == len(validation)
    for loop in range(3 if spawned else 0):
        for step, _ in enumerate(validation):
            time.sleep(0.1 * rank)  # the other one is at its next loop before
            if step == 2:
                break
    with open(os.path.join(sys.argv[1], str(rank)), "w") as file:
        json.dump([rows, loader.reader.world_size], file)


if __name__ == "__main__":
    if sys.argv[2] == "spawn":
        torch.multiprocessing.spawn(main, ("file://" + sys.argv[1] + "/meet",), 2)
    else:
        main()
"""


@pytest.mark.parametrize("how", ["alone", "torchrun", "spawn"])
def test_a_script_needs_no_broker_of_its_own(tmp_path, how):
    (tmp_path / "train.py").write_text(SCRIPT)
    ranks = 1 if how == "alone" else 2
    launcher = [] if how != "torchrun" else [
        "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    environment = {name: value for name, value in os.environ.items()
                   if not name.startswith("PENSTOCK_")}
    run = subprocess.run([sys.executable, *launcher, tmp_path / "train.py", tmp_path, how],
                         env=environment, timeout=300, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert run.returncode == 0, run.stdout
    told = [json.loads((tmp_path / str(rank)).read_text())
            for rank in range(ranks)]
    assert [size for _, size in told] == [ranks] * ranks
    rows = sorted(tuple(row) for rank_rows, _ in told for row in rank_rows)
    assert rows == [(epoch, i, i * i) for epoch in range(2) for i in range(101)]


def test_pictures_of_pillow(tmp_path):
    pictures = pytest.importorskip("PIL.Image")
    for i in range(10):
        pixels = np.random.default_rng(i).integers(0, 255, (20, 30, 3), "uint8")
        pictures.fromarray(pixels).save(tmp_path / f"{i}.png")

    class Folder(data.Dataset):
        def __len__(self):
            return 10

        def __getitem__(self, i):
            picture = pictures.open(tmp_path / f"{i}.png")
            x = random.randrange(10)
            return {"whole": picture.convert("RGB"),
                    "part": np.asarray(picture.crop((x, 0, x + 20, 20)))}

    batch = next(iter(penstock.torch.DataLoader(Folder(), 10)))
    for i, whole in enumerate(batch["whole"]):
        assert (whole.numpy() == np.asarray(pictures.open(tmp_path / f"{i}.png"))).all()
    assert batch["part"].shape == (10, 20, 20, 3)


def test_rows_of_hugging_face():
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict(
        {"id": list(range(50)), "text": [f"row {i}" for i in range(50)],
         "vector": [[float(i)] * 3 for i in range(50)]}).with_format("torch")
    wanted = list(data.DataLoader(dataset, 8))
    for batch, like in zip(penstock.torch.DataLoader(dataset, 8), wanted):
        assert same(batch, like), (batch, like)


def test_rows_of_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"] = np.arange(600, dtype=np.float32).reshape(200, 3)

    class Hdf5(data.Dataset):
        file = None

        def __len__(self):
            return 200

        def __getitem__(self, i):
            if self.file is None:
                self.file = h5py.File(tmp_path / "a.h5")
            return self.file["x"][i], i

    for x, i in penstock.torch.DataLoader(Hdf5(), 32, shuffle=True):
        assert (x[:, 0] == 3 * i).all()


def test_a_batch_may_be_none():
    """What collate_fn gives where none of a batch's samples was good."""
    loader = penstock.torch.DataLoader(
        [3, -1, -2, -3, 4, 5], batch_size=2,
        collate_fn=lambda rows: [row for row in rows if row > 0] or None)
    assert list(loader) == [[3], None, [4, 5]]
    assert list(penstock.torch.DataLoader([1, None, 2], batch_size=None)) == [1, None, 2]


def test_many_iterators_of_one_loader():
    loader = penstock.torch.DataLoader(data.TensorDataset(torch.arange(64)), batch_size=8)
    for batches in zip(*[loader] * 6):
        assert len({batch[0][0].item() for batch in batches}) == 1
    assert batches[0][0].tolist() == list(range(56, 64))


def test_a_copy_of_a_loader_that_was_used():
    loader = penstock.torch.DataLoader(list(range(6)), batch_size=3, num_workers=1)
    assert len(list(loader)) == 2
    for other in (copy.deepcopy(loader), pickle.loads(pickle.dumps(loader))):
        assert other.num_workers == 1
        assert torch.cat(list(other)).tolist() == list(range(6))
    assert torch.cat(list(loader)).tolist() == list(range(6))


def test_a_sampler_without_a_length():
    class Endless:
        def __iter__(self):
            return itertools.count()

    with pytest.raises(TypeError, match="Endless has no __len__: .*IterableDataset"):
        penstock.torch.DataLoader(list(range(6)), sampler=Endless())
