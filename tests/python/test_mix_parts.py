"""Promise: `status` and `metrics` say of each part of a mix what it has given; a job
resumes with parts added, taken away, put into another order and given back, each of
which goes on in its own order where it was, with any number of ranks; what cannot be is
an error that names the part. Judge: counts of the values delivered, and the order that
each part has in a mix that nobody disturbs."""

import json
import os
import subprocess
import sys

import numpy as np
import penstock
import pytest
from test_weights import attach_all, kill_broker, rows_of

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
BATCH = 12
CHANGES_MAX = 128  # JobState::kChangesMax
# By the thousands of its values. "long" is never complete here, so that no pass of the
# mix is; "late" comes later.
SIZES = {"a": 40, "b": 100, "long": 900, "late": 30}
FIRST = {name: 1000 * i for i, name in enumerate(SIZES)}


@pytest.fixture(scope="module")
def broker():
    with penstock.broker(workers=2) as started:
        yield started


def part(name, size=None):
    return penstock.Dataset.range(FIRST[name], FIRST[name] + (size or SIZES[name]))


def mix(weights, shuffle=True, epochs=None, **options):
    """weights: by the name of each part."""
    data = penstock.Dataset.mix(
        [part(name) for name in weights], list(weights.values()),
        **{"when_out": "repeat", **options}, name="mix")
    return (data.shuffle(seed=5) if shuffle else data).batch(BATCH).repeat(epochs)


def status_of(broker, job):
    shown = subprocess.run([PENSTOCK, "status", "--json", "--socket", broker.socket],
                           stdout=subprocess.PIPE, text=True, check=True)
    return next(each for each in json.loads(shown.stdout)["jobs"] if each["job"] == job)


def by_part(rows):
    """The values of each part, in order."""
    values = {name: [] for name in SIZES}
    for value in (value for step in rows for value in step):
        values[list(SIZES)[value // 1000]].append(value % 1000)
    return values


def take(broker, weights, ranks, steps, job, state=None, death=False, **options):
    readers = attach_all(mix(weights, **options), ranks, job,
                         **({} if state is None else {"state": state}))
    rows = rows_of(readers, steps // 2)
    if death:
        kill_broker(broker)
    rows += rows_of(readers, steps - steps // 2)
    state = readers[-1].state_dict()
    for reader in readers:
        reader.close()
    return rows, state


# ---- what each has given

@pytest.mark.parametrize("when_out", ["stop", "drop", "repeat"])
def test_status_counts_the_rows_of_each_part(broker, when_out):
    weights = {"a": 1, "b": 4, "late": 1}
    all_rows, _ = take(broker, weights, 1, 60, f"all-{when_out}", when_out=when_out)
    values = [value for step in all_rows for value in step]
    job = f"status-{when_out}"
    readers = attach_all(mix(weights, when_out=when_out), 2, job)
    for steps in (0, 1, 12, 30):
        if steps > 0:
            rows_of(readers, steps)
        shown = status_of(broker, job)
        parts, position = shown["parts"], shown["position"]
        seen = values[:position]
        for i, name in enumerate(weights):
            rows = sum(value // 1000 * 1000 == FIRST[name] for value in seen)
            assert (parts[i]["part"], parts[i]["records"]) == (i, SIZES[name])
            assert parts[i]["rows"] == parts[i]["rows_of_job"] == rows
            assert parts[i]["epochs"] == pytest.approx(rows / SIZES[name])
            assert parts[i]["share"] == pytest.approx(rows / max(position, 1))
            assert "tokens" not in parts[i]
        assert sum(each["weight"] for each in parts) == pytest.approx(1)
        if position == 0:
            assert [each["weight"] for each in parts] == pytest.approx([1 / 6, 4 / 6, 1 / 6])
        if when_out == "repeat" and position <= 180:  # in its first pass
            assert [each["rows_of_pass"] for each in parts] == [
                each["rows"] for each in parts]
    readers[0].set_weights([1, 1, 2])
    rows_of(readers, 12)
    parts = status_of(broker, job)["parts"]
    if when_out == "repeat":
        assert [each["weight"] for each in parts] == pytest.approx([0.25, 0.25, 0.5])
    text = subprocess.run([PENSTOCK, "status", "--socket", broker.socket],
                          stdout=subprocess.PIPE, text=True, check=True).stdout
    assert "PART  SOURCE" in text and "EPOCHS" in text
    metrics = subprocess.run([PENSTOCK, "metrics", "--socket", broker.socket],
                             stdout=subprocess.PIPE, text=True, check=True).stdout
    line, = [each for each in metrics.splitlines()
             if each.startswith("penstock_part_rows_total")
             and f'job_name="{job}"' in each and 'part="1"' in each]
    assert int(line.split()[-1]) == parts[1]["rows"] and "range" in line
    assert f'penstock_part_epochs_total{{job_name="{job}"' in metrics
    for reader in readers:
        reader.close()


def test_tokens_of_rows_that_have_a_length(broker, tmp_path):
    for name, count in (("x", 400), ("y", 900)):
        np.arange(count, dtype="<u2").tofile(tmp_path / f"{name}.bin")
    tokens = [penstock.Dataset.tokens(str(tmp_path / f"{name}.bin"), 8, dtype="uint16")
              for name in "xy"]
    reader, = attach_all(penstock.Dataset.mix(tokens, [1, 3]).batch(4), 1, "tokens")
    assert sum(1 for _ in zip(range(6), reader)) == 6
    parts = status_of(broker, "tokens")["parts"]
    assert [each["tokens"] for each in parts] == [8 * each["rows"] for each in parts]
    assert "/x.bin" in parts[0]["source"]  # long paths are cut in the middle
    reader.close()


def test_no_parts_where_sequences_go_across_them(broker, tmp_path):
    files = []
    for name in "xy":
        files.append(tmp_path / f"{name}.jsonl")
        files[-1].write_text("".join(json.dumps({"tokens": list(range(1 + i % 9))}) + "\n"
                                     for i in range(200)))
    parts = [penstock.Dataset.json_lines(
        file, {"tokens": {"dtype": "int64", "max_length": 9}}) for file in files]
    for across in (False, True):
        data = penstock.Dataset.mix(parts, [1, 2]).batch(
            4, pack=penstock.pack(16, across_parts=across))
        reader, = attach_all(data, 1, f"packed-{across}")
        steps = sum(1 for _ in zip(range(4), reader))
        shown = status_of(broker, f"packed-{across}")
        assert steps == 4 and ("parts" in shown) != across
        if not across:
            # Without padding: of some 5 items a document, 3 or 4 documents a row of 16.
            for each in shown["parts"]:
                assert 0.75 * 16 * each["rows"] < each["tokens"] < 16 * each["rows"]
        reader.close()


@pytest.mark.parametrize("pack, select", [(True, False), (False, True)])
def test_why_other_weights_cannot_be(broker, tmp_path, pack, select):
    (tmp_path / "a.jsonl").write_text('{"tokens": [1, 2, 3]}\n' * 200)
    part = penstock.Dataset.json_lines(tmp_path / "a.jsonl", {
        "tokens": {"dtype": "int64", "max_length": 3}})

    def weighted(*weights):
        data = penstock.Dataset.mix([part, part], weights, name="why")
        return (data.take(90) if select else data).batch(
            4, pack=penstock.pack(16, across_parts=True) if pack else None)
    reader, = attach_all(weighted(1, 2), 1, f"why-{pack}")
    next(iter(reader))
    state = reader.state_dict()
    with pytest.raises(penstock.InvalidArgument, match="only a mix has .*without `across_parts`"):
        reader.set_weights([2, 1])
    reader.close()
    with pytest.raises(penstock.Error, match="weights: they change where the source is a mix, "
                                             "with `select` in its parts and `pack` without"):
        attach_all(weighted(2, 1), 1, f"why-not-{pack}", state=state)


# ---- other parts

@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_parts_come_and_go(broker, ranks, shuffle):
    job = f"parts-{ranks}-{shuffle}"
    undisturbed, _ = take(broker, {"a": 1, "b": 1, "long": 1, "late": 1}, 1, 70,
                          job + "-all", shuffle=shuffle)
    wanted = by_part(undisturbed)
    plans = [  # weights, steps
        ({"a": 1, "b": 1, "long": 2}, 6),
        ({"long": 2, "late": 1, "a": 1}, 8),        # one gone, one new, another order
        ({"late": 3, "long": 1}, 4),                 # one more is gone
        ({"b": 2, "a": 1, "long": 1, "late": 1}, 8),  # both are back
        ({"b": 1, "a": 3, "long": 1, "late": 1}, 4),  # other weights
        ({"long": 1}, 2),
        ({"long": 1, "a": 1, "b": 1}, 6),
    ]
    rows, state = [], None
    for i, (weights, steps) in enumerate(plans):
        some, state = take(broker, weights, ranks if i % 2 else 2, steps, f"{job}-{i}",
                           state, shuffle=shuffle, death=i == 1 and ranks == 2)
        rows += some
        counts = {name: len(values) for name, values in by_part(some).items()}
        total = sum(weights.values())
        for name in SIZES:  # exact shares, from the first row on
            share = steps * BATCH * weights.get(name, 0) / total
            assert abs(counts[name] - share) < 1, (i, name)
        assert (state["epoch"], state["row"]) == (0, len(rows) * BATCH)
        assert len(state["mix"]["parts"]) == len(weights)
    assert len(state["mix"]["gone"]) == 1
    for name, values in by_part(rows).items():
        assert values == wanted[name][:len(values)], name
    # What a part has given stays known.
    reader, = attach_all(mix({"long": 1, "a": 1, "b": 1}, shuffle=shuffle), 1,
                         job + "-status", state=state)
    shown = status_of(broker, job + "-status")["parts"]
    assert [each["rows"] for each in shown] == [
        len(by_part(rows)[name]) for name in ("long", "a", "b")]
    assert [each["rows_of_job"] for each in shown] == [0, 0, 0]
    reader.close()


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_all_records_come_once_in_a_pass(broker, ranks):
    """`drop`: the rest of each part, and all of what is new."""
    job = f"once-{ranks}"
    options = dict(when_out="drop")
    first, state = take(broker, {"a": 1, "b": 1}, 2, 4, job, **options)
    second = attach_all(mix({"late": 1, "b": 1, "a": 2}, epochs=1, **options), ranks,
                        job + "-2", state=state)
    values = by_part(first + rows_of(second))
    for reader in second:
        reader.close()
    # The epoch has as many rows as that of the mix that it began with.
    assert sum(map(len, values.values())) == 140
    for name in ("a", "late"):
        assert sorted(values[name]) == list(range(SIZES[name]))
    assert len(set(values["b"])) == len(values["b"]) == 140 - 40 - 30


@pytest.mark.parametrize("when_out", ["stop", "drop", "repeat"])
def test_a_weight_of_0_leaves_a_part_out(broker, when_out):
    job = f"zero-{when_out}"
    options = dict(when_out=when_out, epochs=2)
    first, state = take(broker, {"a": 1, "b": 1}, 2, 3, job, **options)
    rest = attach_all(mix({"a": 1, "b": 0}, **options), 3, job + "-2", state=state)
    left_out = rows_of(rest)
    assert left_out and by_part(left_out)["b"] == []
    # What it has again is behind what it had.
    back, _ = take(broker, {"a": 1, "b": 3}, 1, 2, job + "-3", state, **options)
    had = by_part(first)["b"]
    assert set(had).isdisjoint(by_part(back)["b"]) and by_part(back)["b"]
    for reader in rest:
        reader.close()


def test_a_job_resumes_with_other_weights_any_number_of_times(broker):
    """As often as a state has changes, and again; each part has its order throughout."""
    rows, state = [], None
    for i in range(CHANGES_MAX + 4):
        readers = attach_all(mix({"a": 1, "b": 1 + i % 2, "long": 1}), 1 + i % 2, f"often-{i}",
                             **({} if state is None else {"state": state}))
        rows += rows_of(readers, 1)
        state = readers[0].state_dict()
        for reader in readers:
            reader.close()
        assert len(state.get("weights", [])) <= CHANGES_MAX
    assert 0 < len(state["weights"]) < CHANGES_MAX  # behind those that are forgotten
    assert (state["epoch"], state["row"]) == (0, len(rows) * BATCH)
    undisturbed, _ = take(broker, {"a": 1, "b": 1, "long": 1}, 1, len(rows), "often-all")
    wanted = by_part(undisturbed)
    for name, values in by_part(rows).items():
        common = min(len(values), len(wanted[name]))
        assert values[:common] == wanted[name][:common], name
    again, _ = take(broker, {"a": 1, "b": 1, "long": 5}, 3, 2, "often-b", state)
    assert again == take(broker, {"a": 1, "b": 1, "long": 5}, 1, 2, "often-c", state)[0]


def test_the_weights_change_behind_other_parts(broker):
    _, state = take(broker, {"a": 1, "long": 1}, 1, 4, "hand")
    readers = attach_all(mix({"long": 1, "late": 1}), 2, "hand-2", state=state)
    rows = rows_of(readers, 1)
    epoch, row = readers[0].set_weights([1, 3])
    rows += rows_of(readers, 12)
    changed = readers[0].state_dict()
    assert changed["weights"] == [[0, row, 1, 3]] and changed["mix"]["from"] == [0, 48]
    again = attach_all(mix({"long": 1, "late": 1}), 3, "hand-3", state=changed)
    assert rows_of(readers, 3) == rows_of(again, 3)
    late = [value for step in rows[(row - 48) // BATCH:][:6] for value in step
            if value >= FIRST["late"]]
    assert len(late) == 6 * BATCH * 3 // 4
    for reader in readers + again:
        reader.close()


def test_other_parts_are_said(broker):
    _, state = take(broker, {"a": 1, "b": 1, "long": 1}, 1, 4, "said")
    reader, = attach_all(mix({"a": 1, "long": 1, "late": 1}), 1, "said-2", state=state)
    warning = status_of(broker, "said-2")["warning"]
    assert "the mix has other parts than the state: parts[2] (range " in warning
    assert ") begins, range " in warning and warning.endswith(" is left out")
    reader.close()
    # Files of another place are the same part.
    reader, = attach_all(mix({"a": 1, "b": 1, "long": 1}), 1, "said-3", state=state)
    assert "other parts" not in (status_of(broker, "said-3").get("warning") or "")
    reader.close()


def test_what_cannot_be_is_refused(broker):
    _, state = take(broker, {"a": 1, "b": 1, "long": 1}, 1, 4, "refused")

    def fails(error, words, dataset, **changed):
        with pytest.raises(error, match=words):
            attach_all(dataset, 1, f"refused-{words[:20]}", state={**state, **changed})

    other = mix({"b": 1, "long": 1, "late": 1})
    fails(penstock.FailedPrecondition, r"parts\[0\] \(range .*4? ?batch.* not delivered", other,
          owed=[[0, 0, 12, False]])
    fails(penstock.FailedPrecondition, "none of these parts", mix({"late": 1}))
    fails(penstock.FailedPrecondition, "`when_out`, `block`, or what else",
          mix({"b": 1, "long": 1}, when_out="drop"))
    damaged = json.loads(json.dumps(state["mix"]))
    damaged["begin"] = [1, 1, 3]
    fails(penstock.InvalidArgument, "parts make a pass of", other, mix=damaged)
    fails(penstock.InvalidArgument, "nothing may lie before", other,
          mix={**state["mix"], "from": [3, 0]})
    # The seed is another, whatever the parts are.
    fails(penstock.FailedPrecondition, "seed: 5 in the state, 0 here", mix({"a": 1, "late": 1}, shuffle=False))


def test_a_part_that_has_grown_is_refused(broker, tmp_path):
    def of(names, folder="old"):
        return penstock.Dataset.mix([penstock.Dataset.tokens(
            str(tmp_path / folder / f"{name}.bin"), 8, dtype="uint16") for name in names],
            name="grown").batch(4)

    for folder, name, rows in (("old", "x", 50), ("old", "y", 60), ("new", "x", 50),
                               ("new", "y", 70), ("new", "z", 60)):
        (tmp_path / folder).mkdir(exist_ok=True)
        np.arange(8 * rows, dtype="<u2").tofile(tmp_path / folder / f"{name}.bin")
    reader, = attach_all(of("xy"), 1, "grown")
    assert sum(1 for _ in zip(range(3), reader)) == 3
    state = reader.state_dict()
    reader.close()
    with pytest.raises(penstock.InvalidArgument, match=(
            r"parts\[1\] \(tokens .*y.bin\) has 69 rows in a pass, and the state's part of "
            "this name 59: data that have changed cannot go on")):
        attach_all(of("xy", "new"), 1, "grown-2", state=state)
    # A file of another name in its place, with as many records, is the same part.
    reader, = attach_all(of("xz", "new"), 1, "grown-3", state=state)
    assert status_of(broker, "grown-3")["parts"][1]["rows"] == 6
    assert "from" not in reader.state_dict()["mix"]
    reader.close()


def test_parts_that_are_packed_keep_their_places(broker, tmp_path):
    files = []
    for name in "xyz":
        files.append(tmp_path / f"{name}.jsonl")
        files[-1].write_text("".join(
            json.dumps({"tokens": [ord(name)] * (1 + (7 * i) % 9)}) + "\n"
            for i in range(400)))

    def packed(names):
        return penstock.Dataset.mix([penstock.Dataset.json_lines(
            file, {"tokens": {"dtype": "int64", "max_length": 9}})
            for file in files if file.stem in names], when_out="repeat", name="packed").shuffle(
                seed=3).batch(4, pack=penstock.pack(16)).repeat(None)

    def tokens(reader, steps):
        return [np.array(batch["tokens"]) for _, batch in zip(range(steps), reader)]

    reader, = attach_all(packed("xy"), 1, "packed")
    tokens(reader, 5)
    state = reader.state_dict()
    reader.close()
    reader, = attach_all(packed("xyz"), 1, "packed-2", state=state)
    rows = np.concatenate(tokens(reader, 9))
    assert [int((rows[:, 0] == ord(name)).sum()) for name in "xyz"] == [12, 12, 12]
    reader.close()
    with pytest.raises(penstock.InvalidArgument,
                       match=r"parts\[0\] \(json_lines .*y.jsonl\): the parts of a mix that is "
                             "packed keep their places"):
        attach_all(packed("yz"), 1, "packed-3", state=state)
