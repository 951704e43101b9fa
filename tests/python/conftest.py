"""What the tests of the Python package share: a private broker for all of them,
and small datasets."""

from concurrent.futures import ThreadPoolExecutor

import penstock
import pytest


@pytest.fixture(scope="session")
def broker():
    with penstock.broker(workers=2) as started:
        yield started


@pytest.fixture
def in_broker(broker):
    """PENSTOCK_SOCKET names the broker of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_SOCKET", broker.socket)
        yield


@pytest.fixture
def attach(in_broker, request):
    """penstock.attach with a job of the test's own; closed at its end."""
    readers = []

    def attach_one(dataset, *arguments, **options):
        options.setdefault("job", request.node.name[:60])
        options.setdefault("timeout_s", 60)
        readers.append(penstock.attach(dataset, *arguments, **options))
        return readers[-1]

    yield attach_one
    for reader in readers:
        reader.close()


@pytest.fixture
def failure(attach):
    """The text of the error of a dataset."""
    def failure_of(dataset, **options):
        with pytest.raises(penstock.Error) as error:
            for _ in attach(dataset, **options):
                pass
        return str(error.value)
    return failure_of


@pytest.fixture
def attach_all(attach):
    """All ranks of a job, at once: a list of readers, whose steps are zip(*readers)."""
    def attach_ranks(dataset, ranks, job, **options):
        with ThreadPoolExecutor(ranks) as pool:
            return list(pool.map(
                lambda rank: attach(dataset, rank, ranks, local_world_size=ranks, job=job,
                                    **options), range(ranks)))
    return attach_ranks


@pytest.fixture
def starving(attach, numbers):
    """A rank that waits for another one."""
    return attach(numbers, 0, 2, local_world_size=2, delivery="broadcast")


@pytest.fixture
def numbers():
    """24 rows of `value`, three steps of 8."""
    return penstock.Dataset.range(24).batch(8)
