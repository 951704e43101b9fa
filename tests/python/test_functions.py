"""`map: python` through the service: rows go through a user's function, an
exception in it names the sample, and one that hangs holds up no other job."""

import fcntl
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import penstock
import pytest

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")

MODULE = """
import os
import time
import numpy as np


def noisy(row, rng):
    return {"value": row["value"], "noise": rng.random(2, dtype="float32"),
            "pid": os.getpid()}


def fails_at_five(row):
    if row["value"] == 5:
        raise ValueError("five is not wanted")
    return row


def hangs(row):
    time.sleep(1000)


def slow(row):
    time.sleep(0.002)
    return row


def small(row):
    return {"value": row["value"] % 2, "big": 100 * int(row["value"])}


def wide(row):
    return {"value": np.float64([np.inf, 1.0, (1.5, 3e38, 1e300)[row["value"]]])}


def bools(row):
    assert row["mask"].dtype == bool
    return {"mask": ~row["mask"], "large": row["value"] > 1}


def lists(row):
    return {"list": np.zeros(4, "int32"), "list.length": (0, 4, 5)[row["value"]]}


def no_bools(row):
    return {"mask": np.full(2, row["value"], "uint8").view(bool)}
"""

NOISY = {"value": penstock.TensorSpec((), "int64"),
         "noise": penstock.TensorSpec((2,), "float32"),
         "pid": penstock.TensorSpec((), "int64")}


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modules")
    (folder / "steps.py").write_text(MODULE)
    return folder


@pytest.fixture(scope="module")
def function_broker(modules):
    with penstock.broker(workers=2, python_path=[modules]) as broker:
        yield broker


@pytest.fixture
def attach_there(function_broker, request):
    readers = []

    def attach(dataset, *arguments, **options):
        options.setdefault("job", request.node.name[:60])
        readers.append(penstock.attach(
            dataset, *arguments, socket=function_broker.socket, timeout_s=60,
            **options))
        return readers[-1]

    yield attach
    for reader in readers:
        reader.close()


def noisy(rows):
    return (penstock.Dataset.range(rows).shuffle(seed=3)
            .map(penstock.python("steps:noisy", NOISY)).batch(16))


def rows_of(reader):
    found = {}
    for epoch in reader.epochs():
        for batch in epoch:
            for value, noise in zip(batch["value"].tolist(),
                                    batch["noise"].tolist()):
                assert value not in found
                found[value] = noise
    return found


def test_rows_go_through_a_function_of_ours(attach_there):
    reader = attach_there(noisy(500))
    assert reader.element_spec["noise"].dtype == "float32"
    first = rows_of(reader)
    assert sorted(first) == list(range(500))
    assert len({tuple(noise) for noise in first.values()}) == 500
    # Other processes, the same numbers.
    assert rows_of(attach_there(noisy(500), job="again")) == first


def test_processes_are_the_brokers_and_end_with_the_job(attach_there):
    reader = attach_there(noisy(400))
    pids = set()
    for epoch in reader.epochs():
        for batch in epoch:
            pids |= set(batch["pid"].tolist())
    assert os.getpid() not in pids
    assert 1 <= len(pids) <= 2
    reader.close()
    end = time.monotonic() + 20
    while any(os.path.exists(f"/proc/{pid}") for pid in pids):
        assert time.monotonic() < end, "they outlive their job"
        time.sleep(0.05)


def test_a_process_that_is_killed_costs_nothing(attach_there):
    reader = attach_there(noisy(3000))
    values, killed = [], set()
    for epoch in reader.epochs():
        for step, batch in enumerate(epoch):
            values += batch["value"].tolist()
            pid = int(batch["pid"][0])
            if step % 20 == 0 and pid not in killed:
                killed.add(pid)
                os.kill(pid, signal.SIGKILL)
    assert sorted(values) == list(range(3000))
    assert len(killed) > 2


def test_an_exception_names_the_sample_and_has_its_traceback(attach_there):
    dataset = penstock.Dataset.range(100).map(
        penstock.python("steps:fails_at_five")).batch(4)
    reader = attach_there(dataset)
    with pytest.raises(penstock.DataLoss) as failure:
        rows = [batch for epoch in reader.epochs() for batch in epoch]
        del rows
    text = str(failure.value)
    assert "sample 5" in text
    assert "ValueError: five is not wanted" in text
    assert "steps.py" in text and "fails_at_five" in text


def test_integers_are_taken_if_they_fit(attach_there):
    spec = {"value": penstock.TensorSpec((), "uint8"),
            "big": penstock.TensorSpec((), "int8")}
    dataset = penstock.Dataset.range(3).map(
        penstock.python("steps:small", spec)).batch(2)
    reader = attach_there(dataset)
    with pytest.raises(penstock.DataLoss, match="sample 2.*'big'.*from 200 to "
                                                "200, which do not fit into int8"):
        for batch in reader:
            assert batch["value"].tolist() == [0, 1]
            assert batch["big"].tolist() == [0, 100]


def test_floats_are_taken_unless_they_become_infinite(attach_there):
    dataset = penstock.Dataset.range(3).map(penstock.python(
        "steps:wide", {"value": penstock.TensorSpec((3,), "float32")})).batch(1)
    reader = attach_there(dataset)
    wanted = iter((1.5, 3e38))
    with pytest.raises(penstock.DataLoss, match="sample 2.*'value'.*1e.300, which "
                                                "does not fit into float32"):
        for batch in reader:
            assert batch["value"].tolist() == [[np.inf, 1, np.float32(next(wanted))]]


def test_bools(attach_there):
    source = penstock.Dataset.tensors({"value": [0, 1, 2], "mask": [[True, False]] * 3})
    mask = {"mask": penstock.TensorSpec((2,), "bool")}
    dataset = source.map(penstock.python(
        "steps:bools", {**mask, "large": penstock.TensorSpec((), "bool")})).batch(3)
    batch = attach_there(dataset, job="bools").next()
    assert batch["mask"].tolist() == [[False, True]] * 3
    assert batch["large"].tolist() == [False, False, True]
    # What a function makes is checked as a file's bytes are.
    reader = attach_there(source.map(penstock.python("steps:no_bools", mask)).batch(1),
                          job="no-bools")
    with pytest.raises(penstock.DataLoss, match="sample 2.*'mask': byte 0 of its row is "
                                                "2; a bool is 0 or 1"):
        for batch in reader:
            del batch


def test_the_length_of_a_list_is_checked(attach_there):
    spec = {"list": penstock.TensorSpec((4,), "int32"),
            "list.length": penstock.TensorSpec((), "int64")}
    reader = attach_there(penstock.Dataset.range(3).map(
        penstock.python("steps:lists", spec)).batch(1))
    with pytest.raises(penstock.DataLoss, match="sample 2.*'list.length' is 5, and 'list' "
                                                "has room for 4"):
        for batch in reader:
            assert batch.lengths("list").tolist() == [batch.ids[0] * 4]


def test_a_sample_that_fails_can_be_skipped(attach_there):
    dataset = penstock.Dataset.range(100).map(
        penstock.python("steps:fails_at_five")).batch(4).on_error("skip")
    values = [value for epoch in attach_there(dataset).epochs()
              for batch in epoch for value in batch["value"].tolist()]
    assert sorted(values) == [v for v in range(100) if v != 5]


def test_a_function_that_hangs_holds_up_no_other_job(attach_there):
    hanging = penstock.Dataset.range(100).map(
        penstock.python("steps:hangs")).batch(4)
    held = attach_there(hanging, job="hangs")
    begin = time.monotonic()
    others = attach_there(penstock.Dataset.range(5000).batch(10), job="plain")
    assert sum(1 for epoch in others.epochs() for _ in epoch) == 500
    assert len(rows_of(attach_there(noisy(100), job="python too"))) == 100
    assert time.monotonic() - begin < 30
    held.close()


def test_status_says_that_the_function_is_waited_for(attach_there,
                                                     function_broker):
    reader = attach_there(penstock.Dataset.range(100).map(
        penstock.python("steps:hangs")).batch(4), job="status")
    found = {}
    deadline = time.monotonic() + 60
    while "has been in progress" not in found.get("text", ""):
        assert time.monotonic() < deadline, found
        with pytest.raises(penstock.DeadlineExceeded):
            reader.next(timeout_s=0.5)
        answer = json.loads(subprocess.run(
            [PENSTOCK, "status", "--json", "--socket", function_broker.socket],
            stdout=subprocess.PIPE, check=True).stdout)
        found = next(job for job in answer["jobs"]
                     if job["job"] == "status")["bottleneck"]
    assert found["what"] == "python"
    assert "its 2 processes are 100 % busy" in found["text"]


def test_it_is_off_unless_it_was_allowed(broker, attach):
    with pytest.raises(penstock.FailedPrecondition) as failure:
        attach(noisy(10), socket=broker.socket)
    assert "PENSTOCK_PYTHON_PATH" in str(failure.value)


def test_what_cannot_be_imported_is_said_at_attach(attach_there):
    with pytest.raises(penstock.InvalidArgument) as failure:
        attach_there(penstock.Dataset.range(10).map(
            penstock.python("steps:no_such_step")).batch(2))
    assert "no_such_step" in str(failure.value)


def test_a_function_names_itself():
    assert penstock.python(np.linalg.norm) == {
        "python": {"function": f"{np.linalg.norm.__module__}:norm"}}
    def local(row):
        return row

    for function in (lambda row: row, local):
        with pytest.raises(ValueError, match="cannot be imported"):
            penstock.python(function)


def test_a_process_whose_broker_died_at_its_start_ends_before_its_import(tmp_path):
    """PR_SET_PDEATHSIG does not report a death before the call."""
    (tmp_path / "slow.py").write_text("import time\ntime.sleep(3000)\n")
    broker = pathlib.Path(__file__).parents[2] / "broker"
    program = "\n\n".join(
        (broker / path).read_text() for path in
        ("user_code/python_process.py", "transform/python_function.py"))
    ours, link = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.close()
    options = {"function": "slow:f", "python_path": [str(tmp_path)],
               "writable_by": 2, "inputs": [], "outputs": []}
    with link, open(os.devnull) as memory:

        def place_descriptors():
            # Neither has the number that the other gets.
            given = [fcntl.fcntl(file, fcntl.F_DUPFD, 64) for file in (link, memory)]
            for number, file in enumerate(given, 3):
                os.dup2(file, number)

        start = subprocess.Popen([sys.executable, "-c", program, json.dumps(options)],
                                 close_fds=False, preexec_fn=place_descriptors)
    try:
        assert start.wait(60) == 1
    finally:
        start.kill()
