"""Samplers and batch samplers of PyTorch give the order of penstock.torch.DataLoader: asked
once for each epoch, for all processes and ranks."""

import numpy as np
import penstock
import pytest

torch = pytest.importorskip("torch")
data = torch.utils.data
import penstock.torch  # noqa: E402


pytestmark = pytest.mark.usefixtures("in_broker")

PAIRS = data.TensorDataset(torch.arange(1000).float().reshape(100, 10),
                           torch.arange(100))


@pytest.mark.parametrize("sampler, check", [
    (data.WeightedRandomSampler([1.0] * 50 + [0.0] * 50, 200),
     lambda ids: len(ids) == 200 and max(ids) < 50),
    (data.SubsetRandomSampler(range(10)), lambda ids: sorted(ids) == list(range(10))),
    (data.RandomSampler(PAIRS), lambda ids: sorted(ids) == list(range(100))),
    (data.SequentialSampler(PAIRS), lambda ids: ids == list(range(100))),
    ([3, 1, 2], lambda ids: ids == [3, 1, 2]),
], ids=["weighted", "subset", "random", "sequential", "list"])
def test_a_sampler_gives_the_order_of_each_epoch(sampler, check):
    loader = penstock.torch.DataLoader(PAIRS, 10, sampler=sampler)
    for _ in range(2):
        ids = [i for _, y in loader for i in y.tolist()]
        assert check(ids), ids


def test_batch_sampler_and_distributed_sampler():
    batches = data.BatchSampler(data.SequentialSampler(PAIRS), 30, drop_last=True)
    assert [len(y) for _, y in penstock.torch.DataLoader(
        PAIRS, batch_sampler=batches)] == [30] * 3
    sampler = data.DistributedSampler(PAIRS, num_replicas=1, rank=0)
    with pytest.warns(UserWarning, match="without the DistributedSampler"):
        loader = penstock.torch.DataLoader(PAIRS, 10, sampler=sampler)
    epochs = [[i for _, y in loader for i in y.tolist()] for _ in range(3)]
    for epoch in (1, 1, 0, 2):
        sampler.set_epoch(epoch + 10)  # another one, so that a repeated one is seen
        sampler.set_epoch(epoch)
        assert [i for _, y in loader for i in y.tolist()] == epochs[
            loader.epoch - 1], epoch
    assert sorted(epochs[1]) == list(range(100)) and epochs[0] != epochs[1]


class Evens(data.DistributedSampler):
    def __iter__(self):
        return iter([i for i in super().__iter__() if i % 2 == 0])

    def __len__(self):
        return 50


def test_a_subclass_of_distributed_sampler_gives_its_own_indices():
    loader = penstock.torch.DataLoader(
        PAIRS, 8, sampler=Evens(PAIRS, num_replicas=1, rank=0, shuffle=False))
    assert len(loader) == 7
    assert [i for _, y in loader for i in y.tolist()] == list(range(0, 100, 2))


@pytest.mark.parametrize("kind", [data.DistributedSampler, Evens])
def test_a_distributed_sampler_of_other_ranks(kind):
    loader = penstock.torch.DataLoader(
        PAIRS, 8, sampler=kind(PAIRS, num_replicas=4, rank=1))
    with pytest.raises(ValueError, match="rank 1 of 4, this loader of one of 1"):
        next(iter(loader))


class ByLength(data.Sampler):
    def __iter__(self):
        yield from [[0, 1], (2, 3, 4), [5]]

    def __len__(self):
        return 3


def test_a_batch_sampler_gives_batches_of_any_size():
    loader = penstock.torch.DataLoader(torch.arange(6), batch_sampler=ByLength())
    assert len(loader) == 3
    for _ in range(2):
        assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3, 4], [5]]


class Turning(data.Sampler):
    """Keeps a state: each order begins where the last one ended."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        for _ in range(7):
            yield self.at
            self.at = (self.at + 1) % 10

    def __len__(self):
        return 7


class Permuted(data.Sampler):
    """Has its generator under a name of its own, and something that only cloudpickle
    takes."""

    def __init__(self, rows):
        self.rows, self.own = rows, torch.Generator().manual_seed(1)
        self.twice = lambda i: i

    def __len__(self):
        return self.rows

    def __iter__(self):
        order = torch.randperm(self.rows, generator=self.own).tolist()
        return map(self.twice, order)


def test_processes_agree_about_a_samplers_random_numbers():
    loader = penstock.torch.DataLoader(range(96), 32, sampler=Permuted(96), num_workers=4)
    orders = [[i for batch in loader for i in batch.tolist()] for _ in range(4)]
    for order in orders:
        assert sorted(order) == list(range(96))
    assert orders[0] != orders[1]


class Epochs(Permuted):
    def __init__(self, rows):
        super().__init__(rows)
        self.epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return iter([self.epoch] * self.rows)


def test_samplers_of_many_kinds():
    def order(**options):
        return [i for batch in penstock.torch.DataLoader(range(20), 4, **options)
                for i in batch.tolist()]

    assert order(sampler=data.SequentialSampler(range(10))) == list(range(10))
    assert order(sampler=torch.tensor([3, 1, 2])) == [3, 1, 2]
    assert order(sampler=np.array([3, 1, 2])) == [3, 1, 2]
    orders = [order(sampler=data.RandomSampler(
        range(20), generator=torch.Generator().manual_seed(seed))) for seed in (5, 6)]
    assert orders[0] != orders[1]
    sampler = Epochs(4)
    loader = penstock.torch.DataLoader(range(20), 4, sampler=sampler)
    assert [batch.tolist() for batch in loader] == [[0] * 4]
    sampler.set_epoch(5)
    assert [batch.tolist() for batch in loader] == [[5] * 4]


def test_a_sampler_with_a_state_is_asked_for_each_epoch_in_turn():
    wanted = [[i.item() for i in data.DataLoader(torch.arange(10), sampler=sampler)]
              for sampler in [Turning()] for _ in range(4)]
    loader = penstock.torch.DataLoader(torch.arange(10), sampler=Turning(),
                                       num_workers=2)
    assert [[i.item() for i in loader] for _ in range(4)] == wanted
    other = penstock.torch.DataLoader(torch.arange(10), sampler=Turning())
    other.set_epoch(2)
    assert [i.item() for i in other] == wanted[2]
