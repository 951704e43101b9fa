"""A loop over a reader gets every row of each epoch once, a checkpoint resumes with any
number of ranks, and a wait ends on time, on Ctrl-C and at the end of the data."""

import os
import select
import signal
import subprocess
import sys
import threading
import time
import warnings

import numpy as np
import penstock
import pytest


def values_of(batches):
    return [value for batch in batches for value in batch["value"].tolist()]


def test_a_loop_over_epochs_gets_every_row_of_each(attach, numbers):
    reader = attach(numbers.repeat(2))
    assert reader.epoch_count == 2
    seen = []
    for epoch in reader.epochs():
        assert len(epoch) == 3
        seen.append((epoch.number, values_of(epoch)))
    assert seen == [(0, list(range(24))), (1, list(range(24)))]


def test_a_loop_over_the_reader_gets_all_epochs(attach, numbers):
    assert values_of(attach(numbers.repeat(2))) == 2 * list(range(24))


def test_a_loop_that_is_left_early_goes_on_there(attach, numbers):
    reader = attach(numbers)
    for epoch in reader.epochs():
        for batch in epoch:
            assert batch["value"][0] == 0
            break
        break
    del batch
    assert values_of(reader) == list(range(8, 24))


def test_tuples(attach):
    dataset = penstock.Dataset.tensors(
        {"x": np.arange(6, dtype=np.float32).reshape(3, 2),
         "y": [1, 2, 3]}).batch(3)
    for epoch in attach(dataset).epochs():
        (x, y), = epoch.tuples("x", "y")
    assert x.tolist() == [[0, 1], [2, 3], [4, 5]]
    assert y.tolist() == [1, 2, 3]


def test_ranks_of_one_process_divide_each_batch(attach, numbers):
    ranks = [attach(numbers, rank, 2) for rank in range(2)]
    taken = [[], []]
    threads = [threading.Thread(target=lambda i=i: taken[i].extend(
        values_of(ranks[i]))) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken[0] + taken[1]) == list(range(24))
    assert len(taken[0]) == len(taken[1]) == 12


def test_what_a_batch_says_of_itself(attach):
    reader = attach(penstock.Dataset.range(10).batch(4, last="pad").repeat(2))
    for batch in next(iter(reader.epochs())):
        if batch.step == 2:
            break
    assert (batch.rows, batch.valid_rows, batch.global_rows) == (4, 2, 2)
    assert (batch.epoch, batch.step) == (0, 2)
    assert batch.ids.tolist() == [8, 9, penstock.PADDING_ID, penstock.PADDING_ID]
    assert not batch.redelivered
    assert batch.skipped == 0
    assert list(batch) == ["value"] and len(batch) == 1
    assert "int64[4]" in repr(batch)


def test_element_spec(attach):
    reader = attach(penstock.Dataset.synthetic(
        8, {"image": {"dtype": "float16", "shape": [3, 4, 4]},
            "label": {"dtype": "int64", "shape": []}}).batch(4))
    assert reader.element_spec == {
        "image": penstock.TensorSpec((3, 4, 4), "float16"),
        "label": penstock.TensorSpec((), "int64")}
    batch = reader.next()
    assert batch["image"].dtype == np.float16
    assert batch["image"].shape == (4, 3, 4, 4)
    assert batch["label"].shape == (4,)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "int16", "int32", "int64",
                                   "float16", "float32", "float64", "bool"])
def test_every_dtype_of_numpy(attach, dtype):
    values = np.array([[1, 2], [3, 0]], dtype=dtype)
    batch = attach(penstock.Dataset.tensors({"x": values}).batch(2)).next()
    assert batch["x"].dtype == values.dtype
    assert (batch["x"] == values).all()


def test_a_checkpoint_resumes_with_another_number_of_ranks(attach, numbers):
    shuffled = numbers.shuffle(seed=7)
    reader = attach(shuffled, job="whole")
    whole = [batch["value"].tolist() for batch in reader]
    reader = attach(shuffled, job="begun")
    reader.next()
    state = reader.state_dict()
    reader.close()
    ranks = [attach(shuffled, rank, 2, job="resumed", state=state)
             for rank in range(2)]
    for step in (1, 2):
        parts = [rank.next()["value"].tolist() for rank in ranks]
        assert parts[0] + parts[1] == whole[step]


def test_a_loop_may_keep_a_batch_back(attach, numbers):
    """With the default of `hold`: beside the loop's variable and the batch that is
    requested, one more."""
    def in_pairs(batches):  # itertools.pairwise, of Python 3.10
        last = next(batches)
        for batch in batches:
            yield last, batch
            last = batch

    reader = attach(numbers.repeat(4))
    assert reader.stats()["hold_max"] == 3
    pairs = iter(reader)
    steps = 0
    for number, (last, batch) in enumerate(in_pairs(pairs)):
        assert batch["value"][0] == (last["value"][0] + 8) % 24
        steps += 1
    assert steps == 11


def test_a_loop_may_prefetch_a_batch(attach, numbers):
    """As a copy to a device does, which runs while the step before it computes."""
    reader = attach(numbers.repeat(4))
    batches = iter(reader)
    following = next(batches)
    taken = []
    while following is not None:
        batch, following = following, next(batches, None)
        taken.append(int(batch["value"][0]))
    assert taken == [0, 8, 16] * 4


def test_load_state_dict_rewinds(attach, numbers):
    reader = attach(numbers)
    reader.next()
    state = reader.state_dict()
    assert values_of(reader) == list(range(8, 24))
    reader.load_state_dict(state)
    assert values_of(reader) == list(range(8, 24))
    assert reader.incarnation == 2


def test_a_position_alone_is_a_state_of_any_dataset(attach, attach_all, numbers):
    with attach(numbers.shuffle(seed=1).repeat(2), job="whole") as reader:
        whole = values_of(reader)
    begin = {"epoch": 1, "row": 8}
    ranks = attach_all(numbers.shuffle(seed=1).repeat(2), 2, "ranks", state=begin)
    assert [row for batches in zip(*ranks) for batch in batches
            for row in batch["value"].tolist()] == whole[32:]
    own = ranks[0].state_dict()
    assert (own["dataset"], own["epoch"], own["row"]) == ("range", 2, 0)
    ranks[0].reset(0, 1, {"epoch": 0, "row": 16})
    assert values_of(ranks[0]) == whole[16:]
    for state, words in (({"epoch": 0}, "'penstock_state', its version, is missing"),
                         ({"epoch": 0, "row": -1}, "'row' is -1: wanted a number, 0 or more"),
                         ({"epoch": 0, "row": 99}, "row 99 of epoch 0: an epoch has 24 rows")):
        with pytest.raises(penstock.InvalidArgument, match=words):
            attach(numbers, state=state)


def test_reset_to_another_world(attach, numbers):
    reader = attach(numbers, 0, 2, local_world_size=2, job="elastic")
    other = attach(numbers, 1, 2, local_world_size=2, job="elastic")
    reader.next()
    state = reader.state_dict()
    other.close()
    reader.reset(0, 1, state)
    assert reader.world_size == 1
    assert values_of(reader) == list(range(8, 24))


def test_next_tells_the_ends_apart(attach, numbers):
    reader = attach(numbers)
    for _ in range(3):
        reader.next()
    with pytest.raises(penstock.EndOfEpoch):
        reader.next()
    for _ in range(2):
        with pytest.raises(penstock.EndOfData):
            reader.next()


def test_a_time_limit(starving):
    with pytest.raises(penstock.DeadlineExceeded) as caught:
        starving.next(timeout_s=0.05)
    assert isinstance(caught.value, TimeoutError)


def test_fileno_becomes_readable(attach, numbers):
    reader = attach(numbers)
    taken = 0
    while taken < 3:
        try:
            reader.next(timeout_s=0)
            taken += 1
        except penstock.DeadlineExceeded:
            assert select.select([reader], [], [], 60)[0]


def test_stats(attach, numbers):
    reader = attach(numbers)
    batch = reader.next()
    stats = reader.stats()
    assert stats["batches"] == 1 and stats["rows"] == 8 and stats["held"] == 1
    del batch
    assert reader.stats()["held"] == 0


@pytest.mark.parametrize("last", ["partial", "pad"])
def test_rows_that_are_left_out_are_counted(attach_all, tmp_path, last):
    (tmp_path / "rows").write_text("".join(f"{'x' if i in (1, 6, 7) else i}\n" for i in range(10)))
    dataset = penstock.Dataset.csv(tmp_path / "rows", {"0": {"dtype": "int32"}},
                                   header=False).batch(4, last=last)
    ranks = attach_all(dataset.on_error("skip"), 2, "left-out-" + last)
    assert [[batch.left_out for batch in step] for step in zip(*ranks)] == [[1, 0], [0, 2], [0, 0]]
    stats = [rank.stats() for rank in ranks]
    assert [(each["rows"], each["left_out"], each["skipped"]) for each in stats] == [
        (4, 1, 0), (3, 2, 0)]


def test_repeat_first_gives_one_batch_for_ever(attach, numbers):
    reader = attach(numbers.hold(2), repeat_first=True)
    for step, batch in enumerate(reader):
        value = batch["value"]
        assert value[0] == 0
        if step == 20:
            break
    held = reader.next()
    assert held["value"][0] == value[0] == 0
    with pytest.raises(penstock.ResourceExhausted):
        reader.next()
    del batch, value
    reader.next()
    reader.close()
    assert held["value"].tolist() == list(range(8))


def test_a_broadcast_gives_every_consumer_every_batch(attach, numbers):
    ranks = [attach(numbers, rank, 2, delivery="broadcast") for rank in range(2)]
    for step in range(3):
        for rank in ranks:
            assert rank.next()["value"][0] == 8 * step


def test_a_spec_file_and_a_registered_name(attach, numbers, tmp_path):
    path = tmp_path / "numbers.yaml"
    path.write_text(numbers.named("from-file").to_yaml())
    assert values_of(attach(path)) == list(range(24))


def test_waiting_lets_other_threads_run(starving):
    counted = 0
    over = threading.Event()

    def count():
        nonlocal counted
        while not over.is_set():
            counted += 1
            time.sleep(0.001)

    counter = threading.Thread(target=count)
    counter.start()
    with pytest.raises(penstock.DeadlineExceeded):
        starving.next(timeout_s=0.5)
    over.set()
    counter.join()
    assert counted > 20


CTRL_C = """
import penstock, signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # may be ignored
dataset = penstock.Dataset.range(8).batch(8)
try:
    reader = penstock.attach(dataset, 0, 2, "ctrl-c", local_world_size=2,
                             delivery="broadcast")
    print("waiting", flush=True)
    reader.next()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


def test_ctrl_c_ends_a_wait(broker):
    process = subprocess.Popen([sys.executable, "-c", CTRL_C],
                               stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=30)[0] == "interrupted\n"
    assert process.returncode == 0


def test_a_dataset_that_changed_is_opened_anew(attach, tmp_path):
    path = tmp_path / "records"
    dataset = penstock.Dataset.fixed_length_records(
        path, {"x": penstock.TensorSpec((4,), np.uint8)}).batch(2)
    path.write_bytes(bytes(16))
    first = attach(dataset, job="first")
    assert attach(dataset, job="second").sample_count == 4
    path.with_suffix(".new").write_bytes(bytes(24))
    path.with_suffix(".new").rename(path)
    assert attach(dataset, job="third").sample_count == 6
    assert sum(batch.rows for batch in first) == 4


def test_labels_that_differ_are_warned_of(attach, tmp_path):
    def of(name, *classes):
        for each in classes:
            (tmp_path / name / each).mkdir(parents=True)
            (tmp_path / name / each / "1.jpg").write_bytes(b"no picture")
        dataset = penstock.Dataset.image_folder(tmp_path / name)
        return dataset.map(penstock.decode_image(size=8)).batch(1)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        attach(of("train", "ant", "bee", "cat"), job="labels-train")
        attach(of("other", "pen", "vase"), job="labels-other")
    with pytest.warns(UserWarning, match="class 'cat' is label 2 in the first "
                      "and label 1 in the second") as warned:
        attach(of("val", "ant", "cat"), job="labels-val")
    # Where it was called: the fixture.
    assert warned[0].filename.endswith("conftest.py")


def test_a_broker_that_is_about_to_listen_is_waited_for(tmp_path, broker):
    link = tmp_path / "socket"

    def listen():
        time.sleep(0.5)
        link.symlink_to(broker.socket)

    thread = threading.Thread(target=listen)
    thread.start()
    with penstock.attach(penstock.Dataset.range(8).batch(8), 0, 1, job="about",
                         socket=str(link), wait_s=30) as reader:
        assert [batch.rows for batch in reader] == [8]
    thread.join()
    with pytest.raises(penstock.Error, match="no broker"):
        penstock.attach(penstock.Dataset.range(8).batch(8), 0, 1,
                        socket=str(tmp_path / "none"), wait_s=0.2)


def test_replicas_of_one_process_share_each_step(broker):
    data = penstock.Dataset.range(22).batch(8, last="partial").repeat(2)
    with penstock.replicas(data, 3, job="replicas", socket=broker.socket) as replicas:
        assert len(replicas) == 3 and replicas.epoch_count == 2
        steps = [[batch["value"].tolist() for batch in batches] for batches in replicas]
        assert [sum(step, []) for step in steps] == [
            list(range(8)), list(range(8, 16)), list(range(16, 22))]
        assert replicas.epoch == 1
        for batches in replicas:
            break
        state = replicas.state_dict()
        del batches
        rest = [[batch["value"].tolist() for batch in batches] for batches in replicas]
        assert len(rest) == 2
        with pytest.raises(penstock.FailedPrecondition, match="epochs of this job are over"):
            next(iter(replicas))
        replicas.load_state_dict(state)
        assert rest == [[batch["value"].tolist() for batch in batches]
                        for batches in replicas]


def test_replicas_without_rows_have_empty_batches(broker):
    data = penstock.Dataset.range(9).batch(4, last="partial")
    with penstock.replicas(data, 4, job="few", socket=broker.socket) as replicas:
        assert [[batch.rows for batch in step] for step in replicas] == [
            [1, 1, 1, 1], [1, 1, 1, 1], [1, 0, 0, 0]]
    with pytest.raises(penstock.FailedPrecondition, match="split"):
        penstock.replicas(data, 2, delivery="dynamic")


def test_a_function_of_the_input_context_gives_the_dataset(attach):
    seen = []

    def make(context):
        seen.append(context)
        return penstock.Dataset.range(16).batch(
            per_rank=context.get_per_replica_batch_size(8))

    readers = [attach(make, rank, 2, local_world_size=2) for rank in range(2)]
    assert [next(iter(reader))["value"].tolist() for reader in readers] == [
        [0, 1, 2, 3], [4, 5, 6, 7]]
    assert seen == [penstock.InputContext(2, rank, 2) for rank in range(2)]
    with pytest.raises(ValueError, match="not divisible by 2"):
        seen[0].get_per_replica_batch_size(7)
