"""Promise: the weights of a mix change while its job runs, at one row for all ranks, and
the sequence is that of the same schedule in the spec, whatever dies right after, and
with any number of ranks that resume at a state; what cannot be is refused."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import penstock
import pytest

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
STEPS = 24  # of an epoch
BATCH = 12


def mix(epochs=2, **options):
    parts = [penstock.Dataset.range(0, 400), penstock.Dataset.range(1000, 1300),
             penstock.Dataset.range(2000, 2500)]
    weights = options.pop("weights", [1, 1, 2])
    return (penstock.Dataset.mix(parts, weights, **options).shuffle(seed=5)
            .batch(BATCH).steps_per_epoch(STEPS).repeat(epochs))


def rows_of(readers, steps=None):
    """The values of each step, of all ranks."""
    rows = []
    for batches in zip(*readers):
        rows.append([int(v) for batch in batches for v in batch["value"]])
        if steps is not None and len(rows) == steps:
            break
    return rows


def attach_all(dataset, ranks, job, **options):
    return [penstock.attach(dataset, rank, ranks, local_world_size=ranks, job=job,
                            timeout_s=60, **options) for rank in range(ranks)]


@pytest.fixture(scope="module")
def broker():
    with penstock.broker(workers=2) as started:
        yield started


def command(broker, *arguments, ok=True):
    done = subprocess.run([PENSTOCK, "job", *arguments, "--socket", broker.socket],
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert (done.returncode == 0) == ok, done.stderr
    return done.stdout if ok else done.stderr


def kill_broker(broker):
    socket = os.path.dirname(broker.socket)
    killed = 0
    for process in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes()
            if b"penstockd" in words.split(b"\0")[0] and socket.encode() in words:
                os.kill(int(process.name), signal.SIGKILL)
                killed += 1
        except OSError:
            pass
    assert killed == 1


def expected(row, weights):
    """The first epoch, of a spec whose weights change at this row."""
    readers = attach_all(mix(1, schedule={row: weights}), 1, f"e{row}")
    rows = rows_of(readers)
    readers[0].close()
    return rows


@pytest.mark.parametrize("death", [False, True])
def test_all_ranks_change_at_one_row(broker, death):
    job = f"train-{death}"
    readers = attach_all(mix(), 2, job)
    undisturbed = rows_of(attach_all(mix(), 1, job + "-undisturbed"))
    rows = rows_of(readers, 3)
    before = readers[0].state_dict()
    answer = json.loads(command(broker, job, "weights", "0.5", "2", "0.5", "--json"))
    if death:
        kill_broker(broker)
    assert answer["epoch"] == 0 and answer["changes"] == [[0, answer["row"], 1, 4, 1]]
    row = answer["row"]
    # Not made yet, and no rank had it.
    assert 3 * BATCH <= row <= 12 * BATCH and row == answer["step"] * BATCH
    rows += rows_of(readers, 10)
    state = readers[1].state_dict()
    assert readers[0].state_dict() == state
    assert state["weights"] == [[0, row, 1, 4, 1]]
    rows += rows_of(readers)
    for reader in readers:
        reader.close()
    assert len(rows) == 2 * STEPS
    step = row // BATCH
    assert rows[:step] == undisturbed[:step] and rows != undisturbed
    assert rows[:STEPS] == expected(row, [1, 4, 1])
    # The next epoch has the new weights from its beginning.
    parts = [value // 1000 for values in rows[STEPS:] for value in values]
    assert [parts.count(part) for part in range(3)] == [48, 192, 48]
    # Other numbers of ranks.
    for ranks in (1, 3):
        again = attach_all(mix(), ranks, f"{job}-{ranks}", state=state)
        assert rows_of(again) == rows[13:]
        for reader in again:
            reader.close()
    # A state from before does not know of it.
    unchanged = attach_all(mix(), 1, job + "-before", state=before)
    assert rows_of(unchanged) == undisturbed[3:]


@pytest.mark.parametrize("delivery", ["dynamic", "broadcast", "independent"])
def test_every_delivery(broker, delivery):
    # More consumers have more batches made ahead.
    one = {"consumers": 1} if delivery == "broadcast" else {}
    readers = attach_all(mix(), 1, f"d-{delivery}", delivery=delivery, **one)
    rows = rows_of(readers, 2)
    answer = readers[0].set_weights([1, 4, 1])
    (epoch, row, *weights), = readers[0].state_dict()["weights"]
    assert (epoch, weights) == (0, [1, 4, 1]) and answer == (0, row)
    rows += rows_of(readers)
    assert len(rows) == 2 * STEPS and rows[:STEPS] == expected(row, weights)
    readers[0].close()


def test_several_changes_and_a_given_row(broker):
    readers = attach_all(mix(), 1, "several")
    rows = rows_of(readers, 1)
    readers[0].set_weights([1, 0, 0], epoch=0, row=20 * BATCH)
    with pytest.raises(penstock.FailedPrecondition, match="change at row 240 of epoch 0"):
        readers[0].set_weights([0, 0, 1])
    assert readers[0].set_weights([0, 0, 1], epoch=1) == (1, 0)
    assert readers[0].set_weights([0, 3, 1], epoch=1) == (1, 0)
    rows += rows_of(readers)
    assert all(value < 1000 for values in rows[20:STEPS] for value in values)
    parts = [value // 1000 for values in rows[STEPS:] for value in values]
    assert [parts.count(part) for part in range(3)] == [0, 216, 72]
    assert command(broker, "several", "weights") == (
        "job 'several': 1 : 0 : 0 from row 240 of epoch 0 on\n"
        "job 'several': 0 : 3 : 1 from row 0 of epoch 1 on\n")
    readers[0].close()


def test_a_row_without_an_epoch_is_of_the_first(broker):
    reader, = attach_all(mix(), 1, "row alone")
    assert reader.set_weights([1, 0, 0], row=20 * BATCH) == (0, 20 * BATCH)
    assert command(broker, "row alone", "weights", "0", "1", "0", "--row", "252") == (
        "job 'row alone': 0 : 1 : 0 from row 252 of epoch 0 on, its step 21\n")
    reader.close()


def test_what_cannot_be_is_refused(broker):
    readers = attach_all(mix(), 1, "refused")
    assert "the weights of its spec" in command(broker, "refused", "weights")
    for arguments, words in (
            (["1", "2"], "2 weights for 3 parts: give one for each"),
            (["0", "0", "0"], "all weights are 0"),
            (["1", "nan", "1"], "wanted numbers from 0 to"),
            (["1", "2", "0.1234567"], "at most six digits"),
            (["1", "2", "100000"], "add up to 100003, more than 10000: round them"),
            (["1", "2", "3", "--epoch", "0"], "its batch is made already"),
            (["1", "2", "3", "--epoch", "2"], "and 2 epochs"),
            (["1", "2", "3", "--row", "99999"], "has 288 rows in an epoch")):
        error = command(broker, "refused", "weights", *arguments, ok=False)
        assert words in error, error
    assert "no job 'gone'" in command(broker, "gone", "weights", "1", "2", ok=False)
    for reader in readers:
        reader.close()
    plain = penstock.attach(penstock.Dataset.range(9).batch(1), 0, 1, job="plain")
    with pytest.raises(penstock.InvalidArgument, match="only a mix has weights"):
        plain.set_weights([1])
    assert "is no mix" in command(broker, "plain", "weights")
    plain.close()
    with pytest.raises(penstock.InvalidArgument, match="weights"):
        penstock.attach(penstock.Dataset.range(9).batch(1), 0, 1, job="state", state={
            "penstock_state": 1, "dataset": "range", "delivery": "split", "records": 9,
            "seed": 0, "shuffle": None, "epoch": 0, "row": 0, "owed": [],
            "weights": [[0, 3, 1, 2]]})


def test_bench_verifies_a_change(broker, tmp_path):
    spec = tmp_path / "spec.yaml"
    spec.write_text(mix(4000).to_yaml())
    # Into files: nobody reads a pipe while the weights change, and a full one would stop it.
    with open(tmp_path / "out", "w") as out, open(tmp_path / "error", "w") as error:
        process = subprocess.Popen(
            [PENSTOCK, "bench", "--dataset", str(spec), "--ranks", "2", "--verify", "--socket",
             broker.socket, "--json"], stdout=out, stderr=error)
    changed = 0
    while process.poll() is None and changed < 3:
        jobs = json.loads(subprocess.run(
            [PENSTOCK, "jobs", "--json", "--socket", broker.socket],
            stdout=subprocess.PIPE, text=True).stdout)
        for job in jobs["jobs"] if isinstance(jobs, dict) else jobs:
            if job["job"].startswith("bench-"):
                weights = ["4", "1", "1"] if changed % 2 else ["1", "1", "7"]
                done = subprocess.run([PENSTOCK, "job", job["job"], "weights", *weights,
                                       "--socket", broker.socket])
                changed += done.returncode == 0
        time.sleep(0.02)
    assert process.wait(timeout=120) == 0, (tmp_path / "error").read_text()
    assert changed > 0
    assert json.loads((tmp_path / "out").read_text())["verified"] is not None


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_a_state_goes_on_with_the_weights_of_another_spec(broker, ranks):
    """As if they had changed there: each part goes on where it was."""
    job = f"resumed-{ranks}"
    first = attach_all(mix(1), 2, job)
    rows = rows_of(first, 5)
    state = first[0].state_dict()
    second = attach_all(mix(1, weights=[4, 1, 0]), ranks, job + "-2", state=state)
    rows += rows_of(second, 6)
    again = second[0].state_dict()
    assert rows == expected(5 * BATCH, [4, 1, 0])[:11]
    assert again["mix"]["begin"] == [1, 1, 2] and again["mix"]["spec"] == [4, 1, 0]
    # The same weights again change nothing; those of the beginning do.
    third = attach_all(mix(1, weights=[4, 1, 0]), 2, job + "-3", state=again)
    assert rows + rows_of(third) == expected(5 * BATCH, [4, 1, 0])
    back = attach_all(mix(1), 2, job + "-4", state=again)
    assert back[0].state_dict()["weights"] == [
        [0, 5 * BATCH, 4, 1, 0], [0, 11 * BATCH, 1, 1, 2]]
    for readers in (first, second, third, back):
        for reader in readers:
            reader.close()


@pytest.mark.parametrize("weights", [[0.7, 0.3], [250_000.5, 500_001], [0.000001, 1]])
def test_a_state_of_any_weights_goes_on(broker, weights):
    """With the same ones, and with others."""
    def of(weights):
        return penstock.Dataset.mix(
            [penstock.Dataset.range(0, 40), penstock.Dataset.range(100, 140)], weights,
            when_out="drop").batch(4)
    job = f"weights-{weights[0]}"
    reader = penstock.attach(of(weights), 0, 1, job=job, timeout_s=60)
    rows_of([reader], 3)
    state = reader.state_dict()
    same = penstock.attach(of(weights), 0, 1, job=job + "-2", timeout_s=60, state=state)
    assert rows_of([same]) == rows_of([reader])
    other = penstock.attach(of([1, 3]), 0, 1, job=job + "-3", timeout_s=60, state=state)
    rows_of([other], 2)
    state = other.state_dict()["mix"]
    assert (state["begin"], state["spec"]) == (weights, [1, 3])
