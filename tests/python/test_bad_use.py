"""Mistakes end in an exception with a message, never in a crash or a hang."""

import collections.abc
import gc
import inspect
import os
import subprocess
import sys
import time
import typing

import penstock
import pytest


def run(program, **options):
    return subprocess.run([sys.executable, "-c", program], text=True,
                          capture_output=True, timeout=100, **options)


def test_a_rank_outside_the_world(attach, numbers):
    with pytest.raises(penstock.InvalidArgument, match="0 to 1"):
        attach(numbers, 2, 2)
    with pytest.raises(ValueError):
        attach(numbers, -1, 2)


def test_two_attaches_of_one_rank(attach, numbers):
    attach(numbers, 0, 2, local_world_size=2)
    with pytest.raises(penstock.AlreadyExists):
        attach(numbers, 0, 2, local_world_size=2)


def test_a_cell_that_runs_again_has_its_reader_anew(attach, numbers, monkeypatch):
    former = attach(numbers)
    first = former.next()["value"].tolist()
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)  # as in a notebook
    with pytest.warns(UserWarning, match="closed the reader of job"):
        assert attach(numbers).next()["value"].tolist() == first
    with pytest.raises(penstock.FailedPrecondition, match="closed"):
        next(former.epochs())


def test_a_cell_of_two_ranks_that_runs_again_begins_anew(attach_all, numbers, monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    readers = attach_all(numbers, 2, "cell")
    first = [reader.next()["value"].tolist() for reader in readers]
    again = []
    with pytest.warns(UserWarning, match="closed"):
        again.append(penstock.attach(numbers, 0, 2, local_world_size=2, job="cell", timeout_s=60))
    again.append(penstock.attach(numbers, 1, 2, local_world_size=2, job="cell", timeout_s=60))
    assert [reader.next()["value"].tolist() for reader in again] == first
    for reader in again:
        reader.close()


def test_readers_of_two_jobs_of_the_environment_stay(in_broker, numbers, monkeypatch):
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    monkeypatch.setenv("PENSTOCK_JOB", "one")
    with penstock.attach(numbers, timeout_s=60) as one:
        monkeypatch.setenv("PENSTOCK_JOB", "two")
        with penstock.attach(numbers, timeout_s=60) as two:
            two_again = pytest.warns(UserWarning, match="job 'two'")
            with two_again, penstock.attach(numbers, timeout_s=60):
                assert one.next()["value"].size == 8 and two is not one


def test_ranks_that_disagree(attach, numbers):
    attach(numbers, 0, 2, local_world_size=2)
    with pytest.raises(penstock.FailedPrecondition, match="batch"):
        attach(penstock.Dataset.range(24).batch(4), 1, 2, local_world_size=2)


def test_a_wrong_spec_names_the_key(attach, numbers):
    with pytest.raises(penstock.InvalidArgument, match="batch"):
        attach(penstock.Dataset.range(24).batch(-1))


def test_no_broker(numbers, tmp_path):
    with pytest.raises(penstock.NotFound, match="penstock run"):
        penstock.attach(numbers, socket=str(tmp_path / "none"))


def test_no_such_dataset(attach):
    with pytest.raises(penstock.NotFound, match="nothing-of-this-name"):
        attach("nothing-of-this-name")


def test_a_state_that_is_none(attach, numbers):
    with pytest.raises(penstock.InvalidArgument):
        attach(numbers, state="{}")
    with pytest.raises(penstock.InvalidArgument, match="empty"):
        attach(numbers, state="")
    for state in (b"{}", 3, [1]):
        with pytest.raises(TypeError, match="state_dict"):
            attach(numbers, state=state)


def test_numbers_that_make_no_sense(attach, numbers):
    for options in ({"world_size": 0}, {"world_size": -3}, {"rank": 2 ** 40},
                    {"timeout_s": -1}, {"timeout_s": float("nan")},
                    {"wait_s": -1}, {"reconnect_s": -1},
                    {"reconnect_s": float("nan")}, {"window": -1}):
        with pytest.raises(penstock.InvalidArgument,
                           match=next(iter(options))):
            attach(numbers, **options)
    with pytest.raises(TypeError, match="rank: wanted an integer, got '0'"):
        attach(numbers, rank="0")
    with pytest.raises(penstock.InvalidArgument, match="workers"):
        penstock.broker(workers=-1)
    with pytest.raises(TypeError, match="penstock.python"):
        numbers.map(lambda row: row)


def test_an_argument_of_another_kind_is_named_with_what_is_wanted():
    numbers = penstock.Dataset.range(8)
    for weights in ([1, 2], 3.0, "ab"):
        for select in (lambda: numbers.balance("value", weights),
                       lambda: numbers.sample(by="value", weights=weights)):
            with pytest.raises(TypeError, match=r"^weights: wanted a weight for each value "
                                                r"of the column, such as \{3: 2.0\}, got "):
                select()
    for schedule in ([(5, [1, 2])], {5: 1}, {5: "ab"}, 5):
        with pytest.raises(TypeError, match=r"^schedule: wanted the weights by the row from "
                                            r"which on they hold, such as \{1000: \[1, 2\]\}"):
            penstock.Dataset.mix([numbers, numbers], schedule=schedule)
    with pytest.raises(TypeError, match='of: wanted a mapping of names to a number'):
        numbers.split("train", [0.9, 0.1])


def value_for(hint):
    """One that an annotation takes."""
    inner = typing.get_args(hint)
    kind = typing.get_origin(hint) or hint
    if kind is typing.Union:
        return value_for(inner[0])
    for base, value in ((collections.abc.Sequence, []), (collections.abc.Mapping, {}),
                        (os.PathLike, "a"), (collections.abc.Callable, print)):
        if kind is base:
            return value
    return {str: "a", int: 1, float: 1.0, bool: True}.get(kind)


FUNCTIONS = {
    **{name: getattr(penstock, name) for name in penstock.__all__
       if getattr(getattr(penstock, name), "__module__", "") == "penstock.operations"
       and name != "Operation"},
    **{f"Dataset.{name}": getattr(penstock.Dataset.range(8), name)
       for name, value in vars(penstock.Dataset).items()
       if not name.startswith("_") and callable(getattr(value, "__func__", value))}}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_each_argument_of_another_type_is_named(name):
    function = FUNCTIONS[name]
    parameters = inspect.signature(function).parameters
    hints = typing.get_type_hints(getattr(function, "__func__", function))
    needed = {each: value_for(hints[each]) for each, parameter in parameters.items()
              if parameter.default is inspect.Parameter.empty
              and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)}
    for each, parameter in parameters.items():
        if hints[each] is typing.Any or typing.Any in typing.get_args(hints[each]):
            continue
        arguments, named = [], {**needed, each: object()}
        if parameter.kind is parameter.VAR_POSITIONAL:
            arguments, named = [object()], {}
        with pytest.raises(TypeError, match=f"{each}: wanted .*, got <object object"):
            function(*arguments, **named)


def test_things_of_another_type_are_named(attach, numbers):
    for options in ({"job": 3}, {"socket": 3}, {"delivery": 3}, {"lag": b"skip"},
                    {"on_rank_death": 0}, {"timeout_s": "5"}, {"wait_s": [1]},
                    {"window": "2"}, {"window": ""}, {"reconnect_s": "x"},
                    {"node": 0.5}):
        name, value = next(iter(options.items()))
        with pytest.raises(TypeError, match=f"{name}: wanted .*{value!r}".replace("[", r"\[")):
            attach(numbers, **options)
    for dataset in (3, {"source": 1}, ["train.yaml"]):
        with pytest.raises(TypeError, match="dataset: wanted a penstock.Dataset"):
            attach(dataset)
    with pytest.raises(TypeError, match="memory_limit"):
        penstock.broker(memory_limit=4 << 30)
    reader = attach(numbers)
    with pytest.raises(TypeError, match="rank"):
        reader.reset(0.5, 1, reader.state_dict())
    with pytest.raises(TypeError, match="rank: wanted an integer, got None"):
        reader.reset(None, None, reader.state_dict())
    with pytest.raises(TypeError, match="timeout_s"):
        reader.next("soon")
    with pytest.raises(TypeError, match="names"):
        reader.element_spec.chosen("value")


def test_a_path_may_be_bytes(tmp_path):
    dataset = penstock.Dataset.image_folder(os.fsencode(tmp_path))
    assert dataset == penstock.Dataset.image_folder(tmp_path)


def test_a_deadline_that_has_passed_does_not_wait(attach):
    stream = penstock.Dataset.stream({"x": penstock.TensorSpec((), "int8")})
    reader = attach(stream.batch(1), job="no-producer")
    with pytest.raises(penstock.DeadlineExceeded):
        reader.next(timeout_s=-0.001)
    with pytest.raises(penstock.InvalidArgument):
        reader.next(timeout_s=float("nan"))


def test_what_is_over_says_so(attach, numbers):
    reader = attach(numbers)
    epoch = next(reader.epochs())
    assert sum(1 for _ in epoch) == 3
    with pytest.raises(penstock.FailedPrecondition, match="epoch 0 is over"):
        list(epoch)
    reader.close()
    with pytest.raises(penstock.FailedPrecondition, match="closed"):
        list(reader)


def test_batches_in_a_cycle_are_collected(attach, numbers):
    class Node:
        pass

    reader = attach(numbers)
    gc.disable()
    try:
        for _ in range(3):
            node = Node()
            node.itself, node.batch = node, reader.next()
            del node
    finally:
        gc.enable()


def test_an_exception_in_the_loop_leaves_the_reader_usable(attach, numbers):
    reader = attach(numbers)
    with pytest.raises(ZeroDivisionError):
        for batch in reader:
            1 / 0
    del batch
    assert reader.next()["value"][0] == 8


def test_the_interpreter_ends_with_batches_alive(broker):
    result = run("import penstock\n"
                 "reader = penstock.attach(penstock.Dataset.range(8).batch(4),"
                 " job='ends')\n"
                 "batch = reader.next(); array = reader.next()['value']\n"
                 "import gc; gc.disable(); cycle = [array]; cycle.append(cycle)\n"
                 "print(array.sum())")
    assert (result.returncode, result.stdout) == (0, "22\n"), result.stderr


def test_a_reader_that_was_never_closed(broker):
    result = run("import penstock\n"
                 "penstock.attach(penstock.Dataset.range(8).batch(4),"
                 " job='unclosed')\n")
    assert (result.returncode, result.stderr) == (0, "")


def test_a_broker_of_ones_own_ends_with_the_program(tmp_path):
    result = run("import penstock, os\n"
                 "reader = penstock.attach(penstock.Dataset.range(8).batch(8),"
                 " autostart=True)\n"
                 "print(reader.next()['value'].sum())\n"
                 "again = penstock.attach(penstock.Dataset.range(8).batch(8),"
                 " job='again', autostart=True)\n"
                 "import subprocess\n"
                 "print(subprocess.run(['pgrep', '-P', str(os.getpid())],"
                 " capture_output=True).stdout.split())\n",
                 env={**os.environ, "PENSTOCK_SOCKET": str(tmp_path / "none")})
    assert result.returncode == 0, result.stderr
    total, children = result.stdout.splitlines()
    assert total == "28"
    (child,) = [int(each) for each in eval(children)]  # one for both
    while os.path.exists(f"/proc/{child}"):
        time.sleep(0.01)



def test_an_empty_state_file_is_half_a_checkpoint(attach, numbers, monkeypatch,
                                                  tmp_path):
    monkeypatch.setenv("PENSTOCK_STATE", str(tmp_path / "state.json"))
    for text in ("", "\n"):
        (tmp_path / "state.json").write_text(text)
        with pytest.raises(penstock.InvalidArgument, match="state.json' is empty"):
            attach(numbers)


def test_texts_that_are_none(attach, numbers):
    # The state in the message is cut in the middle of a character.
    with pytest.raises(penstock.InvalidArgument):
        attach(numbers, state="\u00e4" * 10)
    for options in ({"job": "a\0b"}, {"job": "\ud800"}, {"socket": "/run/\0"},
                    {"socket": "/run/\ud800"}, {"delivery": "\0"}):
        with pytest.raises(penstock.InvalidArgument, match=next(iter(options))):
            attach(numbers, **options)


def test_names_of_files_that_are_not_utf_8(attach, numbers, tmp_path):
    with pytest.raises(penstock.NotFound, match=r"\\xff"):
        attach(os.fsencode(tmp_path) + b"/\xff.yaml")
    with pytest.raises(penstock.NotFound, match=r"\\xff"):
        penstock.attach(numbers, socket=os.fsencode(tmp_path) + b"/\xff")
    path = os.fsencode(tmp_path) + b"/\xfe.yaml"
    with open(path, "w") as file:
        file.write(numbers.named("oddly-named").to_yaml())
    assert sum(batch.rows for batch in attach(path)) == 24
    with pytest.raises(penstock.InvalidArgument, match="UTF-8"):
        penstock.Dataset.image_folder(b"/data/\xff")
    with pytest.raises(penstock.InvalidArgument, match="empty"):
        penstock.Dataset.image_folder("")


def test_an_epoch_cannot_be_passed_over(attach, numbers):
    reader = attach(numbers.repeat(3).hold(3))
    turns = 0
    with pytest.raises(penstock.FailedPrecondition, match="nothing was taken of epoch 0"):
        for epoch in reader.epochs():
            turns += 1
            assert turns < 3
    for epoch in reader.epochs():
        for batch in epoch:
            break
        break
    assert [batch.epoch for batch in reader] == [0] * 2 + [1] * 3 + [2] * 3


def test_an_epoch_is_over_for_all_that_iterate_it(attach, numbers):
    reader = attach(numbers.repeat(2).hold(3))
    stale = next(reader.epochs())
    batches = iter(stale)
    next(batches)
    assert sum(1 for _ in next(reader.epochs())) == 2
    with pytest.raises(penstock.FailedPrecondition, match="epoch 0 is over"):
        next(batches)
    with pytest.raises(penstock.FailedPrecondition, match="epoch 0 is over"):
        list(stale)
    assert [batch.epoch for batch in reader] == [1] * 3


def test_what_is_no_event_is_refused(attach, numbers):
    batch = attach(numbers).next()
    with pytest.raises(TypeError, match="hold_until"):
        batch.hold_until(None)


def test_batches_can_be_told_apart(attach, numbers):
    reader = attach(numbers)
    first, second = reader.next(), reader.next()
    assert first == first and first != second
    assert len({first, second}) == 2
