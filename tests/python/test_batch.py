"""A batch's memory: nothing is copied, and nothing a user does crashes."""

import copy
import gc
import os
import threading

import numpy as np
import penstock
import pytest


def test_arrays_are_read_only_views_of_shared_memory(attach, numbers):
    batch = attach(numbers).next()
    first, again = batch["value"], batch["value"]
    assert first.ctypes.data == again.ctypes.data
    assert first.ctypes.data % 64 == 0
    assert not first.flags.owndata and not first.flags.writeable
    with pytest.raises(ValueError):
        first[0] = 1
    with pytest.raises(ValueError):
        first.flags.writeable = True
    with pytest.raises(ValueError):
        batch.ids[0] = 1


def test_an_array_keeps_its_batch(attach, numbers):
    reader = attach(numbers)
    array = reader.next()["value"][2:4]
    gc.collect()
    assert reader.stats()["held"] == 1
    assert array.tolist() == [2, 3]
    del array
    assert reader.stats()["held"] == 0


def test_release_lets_go_before_the_name_does(attach, numbers):
    reader = attach(numbers)
    with reader.next() as batch:
        array = batch["value"]
    with pytest.raises(penstock.FailedPrecondition):
        batch["value"]
    assert repr(batch) == "<penstock.Batch, released>"
    assert array.tolist() == list(range(8))
    del array
    assert reader.stats()["held"] == 0


def test_holding_too_many_raises(attach, numbers):
    reader = attach(numbers.hold(2))
    held = [reader.next(), reader.next()]
    with pytest.raises(penstock.ResourceExhausted, match="release a batch"):
        reader.next()
    held.pop(0)
    assert reader.next()["value"][0] == 16


def test_an_unknown_feature_names_those_there_are(attach, numbers):
    batch = attach(numbers).next()
    with pytest.raises(KeyError, match="there are: value"):
        batch["image"]
    assert "image" not in batch


def test_arrays_outlive_a_closed_reader(attach, numbers):
    reader = attach(numbers.prefetch(1))
    arrays = [reader.next()["value"], reader.next()["value"]]
    reader.close()
    reader.close()
    for _ in attach(numbers.prefetch(1), job="another"):
        pass
    assert [array.tolist() for array in arrays] == [
        list(range(8)), list(range(8, 16))]


def test_a_closed_reader_says_so(attach, numbers):
    reader = attach(numbers)
    reader.close()
    for use in (reader.next, reader.state_dict, reader.stats, reader.fileno,
                lambda: reader.rank):
        with pytest.raises(penstock.FailedPrecondition, match="closed"):
            use()


def test_a_forked_child_gets_zeros_and_an_exception(attach, numbers):
    reader = attach(numbers)
    batch = reader.next()
    array = batch["value"]
    child = os.fork()
    if child == 0:
        status = 1
        try:
            if not array.any():
                reader.next()
        except penstock.FailedPrecondition:
            del array, batch
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert array.tolist() == list(range(8))
    assert reader.next()["value"][0] == 8


def test_two_threads_at_once_are_told_so(starving):
    reader = starving
    waiting = threading.Thread(target=lambda: pytest.raises(
        penstock.DeadlineExceeded, reader.next, timeout_s=1))
    waiting.start()
    refused = False
    while waiting.is_alive() and not refused:
        try:
            reader.next(timeout_s=0)
        except penstock.FailedPrecondition:
            refused = True
        except penstock.DeadlineExceeded:
            pass
    waiting.join()
    assert refused


def test_batches_may_die_on_any_thread(attach):
    reader = attach(penstock.Dataset.range(800).batch(8))
    for _ in range(100):
        kept = [reader.next()["value"]]
        thread = threading.Thread(target=kept.clear)
        thread.start()
        thread.join()
    assert reader.stats()["held"] == 0


def test_bfloat16_without_a_numpy_dtype(attach):
    dataset = penstock.Dataset.synthetic(
        4, {"x": {"dtype": "bfloat16", "shape": [2]}}).batch(4)
    batch = attach(dataset).next()
    try:
        import ml_dtypes
    except ImportError:
        with pytest.raises(TypeError, match="ml_dtypes"):
            batch["x"]
    else:
        assert batch["x"].dtype == ml_dtypes.bfloat16


class Event:
    """As torch.cuda.Event has it."""

    def __init__(self):
        self.passed = False
        self.waited_for = 0

    def query(self):
        return self.passed

    def synchronize(self):
        self.waited_for += 1


def test_a_batch_is_held_until_its_event_has_passed(attach, numbers):
    reader = attach(numbers)
    event = Event()
    reader.next().hold_until(event)
    assert reader.stats()["held"] == 1
    reader.next()
    assert reader.stats()["held"] == 1
    event.passed = True
    reader.next()
    assert reader.stats()["held"] == 0
    assert event.waited_for == 0


def test_the_oldest_event_is_waited_for_when_no_more_may_be_held(attach,
                                                                 numbers):
    reader = attach(numbers.hold(2))
    events = [Event(), Event()]
    for event in events:
        reader.next().hold_until(event)
    assert reader.next()["value"][0] == 16
    assert [event.waited_for for event in events] == [1, 0]
    reader.close()
    assert events[1].waited_for == 1


def test_tensors_by_dlpack_are_private_and_keep_their_batch(attach, numbers):
    reader = attach(numbers)
    batch = reader.next()
    exported = batch._core.array(0, True)
    assert exported.__dlpack_device__() == (1, 0)
    unused = exported.__dlpack__()
    tensor = np.from_dlpack(exported)
    shared = batch["value"]
    del batch, exported, unused
    assert reader.stats()["held"] == 1
    assert tensor.tolist() == list(range(8))
    shared = shared.copy()
    assert reader.stats()["held"] == 1
    dropped = [tensor]
    del tensor
    thread = threading.Thread(target=dropped.clear)
    thread.start()
    thread.join()
    assert reader.stats()["held"] == 0


def exporter_of(array):
    """What made an array of NumPy, whose versions keep it in different ways."""
    return array.base[0] if isinstance(array.base, tuple) else array.base


def test_dlpack_refuses_what_it_cannot_say(attach, numbers):
    batch = attach(numbers).next()
    with pytest.raises(BufferError, match="read only"):
        exporter_of(batch["value"]).__dlpack__()
    with pytest.raises(BufferError, match="uncopied"):
        batch._core.array(0, True).__dlpack__(copy=True)


def test_only_a_reader_makes_batches(attach, numbers):
    batch = attach(numbers).next()
    for made in (batch._core, exporter_of(batch["value"])):
        with pytest.raises(TypeError, match="only penstock"):
            type(made)()
        with pytest.raises(TypeError):
            copy.copy(made)
