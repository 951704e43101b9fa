"""Promise: a job of any number of ranks begins at a state of any step of any pipeline, and
gives the rest of the same sequence. This holds whatever keeps the rows, after the weights
of a mix were changed, and on several hosts. Method: one rank takes all rows of all epochs.
Other numbers of ranks take theirs, before a state and after it, and every row has to be
the same at its place. `penstock bench --verify` compares each pipeline with the broker's
serial replay."""

import contextlib
import itertools
import json
import os
import random
import subprocess
import sys

import numpy as np
import penstock
import pytest

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
Dataset = penstock.Dataset
EPOCHS = 3
BATCH = 7  # divides the rows of almost no pipeline
ROWS = 90  # of each set of files
TAKING = (1, 2, 3)  # ranks of a job in which a state is taken
CONTINUING = (1, 2, 3, 4)  # ranks of a job that begins at that state


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The files of `labelled` and `records`, and folders for rows that are kept."""
    folder = tmp_path_factory.mktemp("resume")
    every = np.arange(ROWS)
    rng = np.random.default_rng(1)
    np.save(folder / "value.npy", every)
    np.save(folder / "label.npy", every % 7 * (every % 3))
    np.save(folder / "image.npy", rng.integers(0, 256, (ROWS, 5, 4, 3), dtype=np.uint8))
    for name, part in zip("abcdef", np.split(every, [9, 10, 40, 41, 66])):
        part.tofile(folder / name)
    (folder / "lists.jsonl").write_text("".join(
        json.dumps({"tokens": list(range(i, i + i % 9))}) + "\n" for i in range(ROWS)))
    return folder


@pytest.fixture(scope="module")
def environment(folder):
    """Brokers keep rows in the folder, and filters keep their answers there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PENSTOCK_CACHE_DIR", str(folder / "cache"))
        patch.setenv("PENSTOCK_SNAPSHOT_PATH", str(folder))
        yield


@pytest.fixture(scope="module")
def broker(environment):
    with penstock.broker(workers=2) as started:
        yield started


# ---- pipelines ---------------------------------------------------------------


def labelled(folder):
    """Records with labels of unequal frequencies, in files of NumPy."""
    return Dataset.npy({name: folder / f"{name}.npy"
                        for name in ("value", "label", "image")})


def records(folder):
    """The same numbers in six files of unequal lengths."""
    return Dataset.fixed_length_records(
        [folder / name for name in "abcdef"], {"value": {"dtype": "int64", "shape": []}})


def two_parts(**options):
    return Dataset.mix([Dataset.range(30), Dataset.range(100, 175)], [2, 1], **options)


def mix_of_mixes():
    inner = Dataset.mix([Dataset.range(100, 150), Dataset.range(200, 220)], [1, 3],
                        when_out="repeat")
    return Dataset.mix([Dataset.range(90), inner], [1, 2], when_out="repeat")


def lists(folder):
    return Dataset.json_lines(
        folder / "lists.jsonl", {"tokens": {"dtype": "int32", "max_length": 9}})


def with_a_short_last_batch(last):
    two = [Dataset.range(40), Dataset.range(100, 148)]
    return Dataset.concat(two).shuffle(seed=3).batch(BATCH, last=last)


# What chooses the records of a pass. Each function is given the folder of the files.
PIPELINES = {
    "filter-by-column": lambda folder: labelled(folder).filter("label", include=[0, 2, 4]),
    "filter-by-file": lambda folder: records(folder).filter("file", matches="*[bdef]"),
    "filter-by-function": lambda folder: labelled(folder).filter(
        lambda row: row["value"] % 3 != 0),
    "lists": lambda folder: lists(folder),
    "words": lambda folder: Dataset.text_lines(folder / "lists.jsonl", 80).map(
        penstock.vectorize_text([str(i) for i in range(50)], 12),
        penstock.pad_sequence(11, feature="text")),
    "take": lambda folder: Dataset.range(100).take(61),
    "skip": lambda folder: Dataset.range(100).skip(41),
    "shard": lambda folder: Dataset.range(200).shard(3, 1),
    "shard-by-file": lambda folder: records(folder).shard(2, 0, by="file"),
    "concat": lambda folder: Dataset.concat(
        [Dataset.range(30), Dataset.range(100, 140).skip(3)]),
    "several-steps": lambda folder: Dataset.concat(
        [Dataset.range(90), Dataset.range(100, 190)]).skip(5).take(150).shard(2, 1),
    "times": lambda folder: Dataset.range(25).times(3),
    "times-of-a-part": lambda folder: Dataset.concat(
        [Dataset.range(20).times(2), Dataset.range(100, 131)]),
    "zip": lambda folder: Dataset.zip([Dataset.range(85), labelled(folder).skip(5)],
                                      [None, "of_files."]),
    "sample-of-a-zip": lambda folder: Dataset.zip(
        [Dataset.range(200), Dataset.range(300, 500)], [None, "other."]).sample(70, seed=2),
    "zip-of-a-mix": lambda folder: Dataset.zip(
        [two_parts(when_out="drop"), Dataset.range(300, 405)], [None, "other."]),
    "mix-stop": lambda folder: two_parts(when_out="stop"),
    "mix-drop": lambda folder: two_parts(when_out="drop"),
    "mix-repeat": lambda folder: two_parts(when_out="repeat"),
    "mix-schedule": lambda folder: two_parts(
        when_out="repeat", schedule={25: [1, 1], 60: [0.3, 0.7]}),
    "mix-blocks": lambda folder: two_parts(when_out="repeat", block=BATCH),
    "mix-of-mixes": lambda folder: mix_of_mixes(),
    "mix-of-zips": lambda folder: Dataset.mix(
        [Dataset.zip([Dataset.range(40), Dataset.range(300, 340)], [None, "other."]),
         Dataset.zip([Dataset.range(100, 150), Dataset.range(400, 450)],
                     [None, "other."])], [1, 2], when_out="drop"),
    "sample": lambda folder: Dataset.range(100).sample(80, seed=4),
    "sample-each-once": lambda folder: labelled(folder).sample(
        60, by="label", weights={4: 5}, replacement=False),
    "sample-by-label": lambda folder: labelled(folder).sample(
        75, by="label", weights={4: 5}),
    "balance-stop": lambda folder: labelled(folder).balance("label", when_out="stop"),
    "balance-repeat": lambda folder: labelled(folder).balance("label", {0: 4}),
    "balance-drop": lambda folder: labelled(folder).balance(
        "label", {3: 2}, when_out="drop"),
    "split": lambda folder: Dataset.range(100).split("a", {"a": 0.7, "b": 0.3}, seed=3),
    "split-by-label": lambda folder: labelled(folder).split(
        "a", {"a": 0.6, "b": 0.4}, seed=1, by="label"),
    "split-by-file": lambda folder: records(folder).split(
        "a", {"a": 0.6, "b": 0.4}, seed=1, by="file"),
    "fold": lambda folder: Dataset.range(103).fold(2, 5),
    "fold-by-label": lambda folder: labelled(folder).fold(1, 3, by="label"),
    "interleave": lambda folder: records(folder).interleave(3, 4),
}

# What orders the records of a pass, and what divides them into steps.
ORDERED = {
    "shuffle-once": lambda folder: Dataset.range(80).shuffle(seed=2, each_epoch=False),
    "windows": lambda folder: records(folder).shuffle(seed=2, window_files=2),
    "windows-of-a-shard": lambda folder: records(folder).shard(2, 0, by="file").shuffle(
        seed=2, window_files=2),
    "batches-of-a-part": lambda folder: Dataset.mix(
        [Dataset.range(40).batch(4), Dataset.range(100, 150).batch(7)], [2, 1],
        when_out="drop").shuffle(seed=3),
    "buckets-in-order": lambda folder: lists(folder).batch(
        BATCH, buckets=penstock.buckets("tokens.length", boundaries=[2, 5])),
    "buckets": lambda folder: lists(folder).shuffle(seed=3).batch(
        BATCH, buckets=penstock.buckets("tokens.length", count=3)),
    "buckets-drop": lambda folder: lists(folder).skip(3).shuffle(seed=3).batch(
        BATCH, buckets=penstock.buckets("tokens.length", count=4), last="drop"),
    "tokens": lambda folder: lists(folder).shuffle(seed=3).batch(
        tokens=40, buckets=penstock.buckets("tokens.length", count=4)),
    "packed-in-order": lambda folder: lists(folder).batch(
        BATCH, pack=penstock.pack(11, with_=["records"])),
    "packed": lambda folder: lists(folder).shuffle(seed=3).batch(
        BATCH, pack=penstock.pack(11, with_=["cu_seqlens", "records"], window=25)),
    "packed-first-fit": lambda folder: lists(folder).skip(3).shuffle(
        seed=3, each_epoch=False).batch(
            BATCH, pack=penstock.pack(6, method="first_fit"), last="drop"),
    "packed-split": lambda folder: lists(folder).shuffle(seed=3).batch(
        BATCH, pack=penstock.pack(7, method="split", window=40, with_=["position_ids"]),
        last="pad"),
    "packed-parts": lambda folder: Dataset.mix(
        [lists(folder).take(30), lists(folder).skip(30)], [1, 2],
        when_out="repeat").shuffle(seed=3).batch(
            BATCH, pack=penstock.pack(11, window=16, with_=["records"])),
    "packed-across-parts": lambda folder: Dataset.mix(
        [lists(folder).take(30), lists(folder).skip(30)], [1, 2],
        when_out="drop").shuffle(seed=3).steps_per_epoch(9).batch(
            BATCH, pack=penstock.pack(11, across_parts=True, with_=["records"])),
    "last-partial": lambda folder: with_a_short_last_batch("partial"),
    "last-drop": lambda folder: with_a_short_last_batch("drop"),
    "last-pad": lambda folder: with_a_short_last_batch("pad"),
    "fewer-steps": lambda folder: mix_of_mixes().shuffle(seed=3).steps_per_epoch(9),
    "more-steps": lambda folder: Dataset.range(60).shuffle(seed=3).steps_per_epoch(14),
}


def shuffled(make):
    return lambda folder: make(folder).shuffle(seed=9)


CASES = {
    **{f"{name}-in-order": make for name, make in PIPELINES.items()},
    **{f"{name}-shuffled": shuffled(make) for name, make in PIPELINES.items()},
    **ORDERED,
}


def dataset_of(case, folder):
    """The dataset of a case, in batches of its own or of BATCH rows."""
    dataset = CASES[case](folder).repeat(EPOCHS)
    return dataset if "batch" in dataset.to_dict() else dataset.batch(BATCH)


# ---- jobs and their sequences ------------------------------------------------


JOBS = itertools.count()


@contextlib.contextmanager
def ranks_of_a_job(dataset, ranks, state=None, hosts=None):
    """The readers of a new job, by rank. `hosts`: the socket of each rank's broker."""
    hosts = hosts or [None] * ranks
    job = f"resume-{next(JOBS)}"
    readers = []
    try:
        for rank, host in enumerate(hosts):
            readers.append(penstock.attach(
                dataset, rank, ranks, local_world_size=hosts.count(host), job=job,
                state=state, socket=host, timeout_s=60))
        yield readers
    finally:
        for reader in readers:
            reader.close()


def step_of(batches):
    """What all ranks get in a step: its epoch, its number, the part, and of each row the id
    and the bytes of its features. Padding has no id and is left out: it lies in the rows of
    the last ranks, whoever these are."""
    rows = []
    for batch in batches:
        features = [[value.tobytes() for value in batch[name]] for name in batch]
        rows += [row for row in zip(batch.ids.tolist(), *features) if row[0] >= 0]
    return batches[0].epoch, batches[0].step, batches[0].part, rows


def steps_of(readers, most=None):
    """The next steps of a job. `most`: how many. All that are left by default."""
    steps = []
    if most == 0:
        return steps
    for batches in itertools.zip_longest(*readers):
        assert None not in batches, "some ranks got more batches than others"
        steps.append(step_of(batches))
        if len(steps) == most:
            break
    return steps


def state_of(readers):
    states = [reader.state_dict() for reader in readers]
    assert states == states[:1] * len(readers), "ranks have different states"
    return states[0]


def whole(dataset):
    """All steps as one rank gets them."""
    with ranks_of_a_job(dataset, 1) as readers:
        return steps_of(readers)


def assert_same(steps, wanted, what):
    """`what`: the pipeline and its ranks. The failure names the step as well."""
    for got, want in zip(steps, wanted):
        assert got == want, f"{what}: step {want[1]} of epoch {want[0]} differs"
    assert len(steps) == len(wanted), f"{what}: {len(steps)} steps, not {len(wanted)}"


def some_steps(steps, seed):
    """After how many steps a state is taken: none, a part of the first epoch, all of it, a
    part of the second epoch, all steps but one, all. The seed draws the parts."""
    chosen = random.Random(seed)
    epochs = [[at for at, step in enumerate(steps) if step[0] == epoch]
              for epoch in range(EPOCHS)]
    assert all(len(epoch) > 1 for epoch in epochs), "too few steps for this test"
    return sorted({0, epochs[1][0], len(steps) - 1, len(steps),
                   *(chosen.choice(epoch[1:]) for epoch in epochs[:2])})


def command(*arguments):
    """What `penstock` prints as JSON."""
    done = subprocess.run([PENSTOCK, *map(str, arguments)], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 0, f"penstock {arguments}: {done.stdout}{done.stderr}"
    return json.loads(done.stdout)


# ---- any step, any number of ranks --------------------------------------------


@pytest.mark.parametrize("case", CASES)
def test_a_state_of_any_step_gives_the_same_rest_to_any_number_of_ranks(
        broker, folder, case):
    dataset = dataset_of(case, folder)
    wanted = whole(dataset)
    for at in some_steps(wanted, case):
        states = []
        for taking in TAKING:
            what = f"{case}, {taking} ranks up to step {at}"
            with ranks_of_a_job(dataset, taking) as readers:
                assert_same(steps_of(readers, at), wanted[:at], what)
                states.append(state_of(readers))
            assert states[-1] == states[0], f"{what}: another state than that of one rank"
        # The states are the same, so one of them is continued for all.
        for continuing in CONTINUING:
            with ranks_of_a_job(dataset, continuing, states[0]) as readers:
                assert_same(steps_of(readers), wanted[at:],
                            f"{case}, continued by {continuing} ranks from step {at} on")


@pytest.mark.parametrize("size", [{"per_rank": 4}, {"tokens_per_rank": 20}])
def test_buckets_of_a_rank_keep_the_steps_they_began_with(broker, folder, size):
    dataset = lists(folder).shuffle(seed=3).batch(
        buckets=penstock.buckets("tokens.length", count=3), **size).repeat(EPOCHS)
    with ranks_of_a_job(dataset, 3) as readers:
        wanted = steps_of(readers)
    for at in some_steps(wanted, 1):
        with ranks_of_a_job(dataset, 3) as readers:
            assert_same(steps_of(readers, at), wanted[:at], f"3 ranks up to step {at}")
            state = state_of(readers)
        for continuing in CONTINUING:
            with ranks_of_a_job(dataset, continuing, state) as readers:
                assert_same(steps_of(readers, 1), wanted[at:at + 1], "one step")
                again = state_of(readers)
            with ranks_of_a_job(dataset, 2, again) as readers:
                assert_same(steps_of(readers), wanted[at + 1:],
                            f"continued by {continuing} and 2 ranks from step {at} on")


@pytest.mark.parametrize("window_files", [None, 1, 2])
def test_files_of_a_rank_keep_the_steps_they_began_with(broker, folder, window_files):
    dataset = records(folder).shuffle(seed=2, window_files=window_files).batch(
        BATCH).shard_policy("file").repeat(EPOCHS)
    with ranks_of_a_job(dataset, 3) as readers:
        wanted = steps_of(readers)
    for at in some_steps(wanted, 2):
        with ranks_of_a_job(dataset, 3) as readers:
            assert_same(steps_of(readers, at), wanted[:at], f"3 ranks up to step {at}")
            state = state_of(readers)
        for continuing in CONTINUING:
            with ranks_of_a_job(dataset, continuing, state) as readers:
                assert_same(steps_of(readers), wanted[at:],
                            f"continued by {continuing} ranks from step {at} on")


# ---- rows that are kept ------------------------------------------------------


# All but the first and the cast draw random numbers.
STEPS = [penstock.resize((6, 7)), penstock.flip(),
         penstock.color_jitter(0.4, 0.4, 0.4, 0.1), penstock.cast("float32"),
         penstock.random_erasing(0.5)]

PICTURES = {
    "all": lambda folder: labelled(folder),
    "filter": lambda folder: labelled(folder).filter("label", include=[0, 2, 4]),
    "times": lambda folder: labelled(folder).take(25).times(3),
    "sample": lambda folder: labelled(folder).sample(75, by="label", weights={4: 5}),
    "balance": lambda folder: labelled(folder).balance("label", {0: 4}),
    "sample-of-a-zip": lambda folder: Dataset.zip(
        [labelled(folder), Dataset.range(ROWS)], [None, "other."]).sample(75, seed=2),
    "mix": lambda folder: Dataset.mix(
        [labelled(folder).take(40), labelled(folder).skip(50)], [1, 3],
        when_out="repeat"),
}

# The pictures are kept as they are read (at=0), or as the first step has made them.
KEPT = {
    "none": lambda dataset, folder: dataset,
    "memory": lambda dataset, folder: dataset.cache(memory="1M"),
    "little-memory": lambda dataset, folder: dataset.cache(memory="4K"),
    "disk": lambda dataset, folder: dataset.cache(disk="1M"),
    "disk-zstd": lambda dataset, folder: dataset.cache(disk="1M", at=0, zstd=3),
    "snapshot": lambda dataset, folder: dataset.snapshot(folder / "plain"),
    "snapshot-zstd": lambda dataset, folder: dataset.snapshot(folder / "zstd", zstd=3),
}


def augmented(pipeline, folder):
    pictures = PICTURES[pipeline](folder).shuffle(seed=5)
    return pictures.map(*STEPS).batch(BATCH).repeat(EPOCHS)


@pytest.mark.parametrize("pipeline", PICTURES)
@pytest.mark.parametrize("before", KEPT)
def test_a_state_continues_with_the_same_bytes_whatever_keeps_the_rows(
        broker, folder, before, pipeline):
    dataset = augmented(pipeline, folder)
    wanted = whole(dataset)
    # The first of these jobs begin a snapshot, and the last ones read it.
    snapshots = folder / f"snapshots-{before}-{pipeline}"
    chosen = random.Random(f"{pipeline} {before}")
    at, taking = chosen.randrange(len(wanted)), chosen.choice(TAKING)
    what = f"{pipeline}, kept in {before}, {taking} ranks up to step {at}"
    with ranks_of_a_job(KEPT[before](dataset, snapshots), taking) as readers:
        assert_same(steps_of(readers, at), wanted[:at], what)
        state = state_of(readers)
    for after in KEPT:
        continuing = chosen.choice(CONTINUING)
        with ranks_of_a_job(KEPT[after](dataset, snapshots), continuing, state) as readers:
            assert_same(steps_of(readers), wanted[at:],
                        f"{what}, continued by {continuing} with rows kept in {after}")


@pytest.mark.parametrize("kept", [kept for kept in KEPT if kept != "none"])
def test_rows_are_read_from_what_keeps_them(broker, folder, kept):
    dataset = KEPT[kept](augmented("all", folder), folder / "snapshots-status")
    with ranks_of_a_job(dataset, 2) as readers:
        job = readers[0].job
        steps_of(readers)
        status = command("status", "--json", "--socket", broker.socket)
    (hits,) = [each["cache_hits"] for each in status["jobs"] if each["job"] == job]
    assert hits > 0


# ---- weights that are changed by hand ------------------------------------------


WEIGHTED = {
    "mix-of-mixes": lambda folder: mix_of_mixes(),
    "mix-with-a-balance": lambda folder: Dataset.mix(
        [labelled(folder).take(50), labelled(folder).balance("label")], [1, 2],
        when_out="repeat"),
    "mix-with-repeats": lambda folder: Dataset.mix(
        [Dataset.range(70),
         Dataset.concat([Dataset.range(100, 120).times(2), Dataset.range(200, 230)])],
        [1, 2], when_out="drop"),
}
EPOCH_STEPS = 18
CHANGES = {7: [3, 1], 25: [1, 5]}  # by the number of steps before the change is asked for


def weighted(pipeline, folder):
    return (WEIGHTED[pipeline](folder).shuffle(seed=5).batch(BATCH)
            .steps_per_epoch(EPOCH_STEPS).repeat(EPOCHS))


def changed(dataset, changes):
    """All steps as one rank gets them. It asks for these changes before its first step."""
    with ranks_of_a_job(dataset, 1) as readers:
        for epoch, row, *weights in changes:
            readers[0].set_weights(weights, epoch=epoch, row=row)
        return steps_of(readers)


@pytest.mark.parametrize("taking", TAKING)
@pytest.mark.parametrize("pipeline", WEIGHTED)
def test_a_state_continues_with_the_weights_that_were_set_before_it(
        broker, folder, pipeline, taking):
    dataset = weighted(pipeline, folder)
    steps, states = [], []
    with ranks_of_a_job(dataset, taking) as readers:
        states.append((0, state_of(readers)))
        while len(steps) < EPOCH_STEPS * EPOCHS:
            steps += steps_of(readers, 1)
            states.append((len(steps), state_of(readers)))
            if len(steps) in CHANGES:
                readers[0].set_weights(CHANGES[len(steps)])
                # The change is a part of the state before it takes effect.
                states.append((len(steps), state_of(readers)))
    # The sequence of a state follows from the changes that it has.
    sequences = {}
    for _, state in states:
        changes = state.get("weights", [])
        if len(changes) not in sequences:
            sequences[len(changes)] = changed(dataset, changes)
    assert sorted(sequences) == [0, 1, 2]
    assert_same(steps, sequences[2], f"{pipeline}, {taking} ranks")
    assert sequences[0] != sequences[1]
    assert sequences[1] != sequences[2]
    chosen = random.Random(f"{pipeline} {taking}")
    near = [each for each in states if each[0] in CHANGES]
    for at, state in [states[0], *near, *chosen.sample(states[1:-1], 6), states[-1]]:
        changes = state.get("weights", [])
        for continuing in CONTINUING:
            with ranks_of_a_job(dataset, continuing, state) as readers:
                assert_same(
                    steps_of(readers), sequences[len(changes)][at:],
                    f"{pipeline}, {taking} ranks up to step {at}, changes {changes}, "
                    f"continued by {continuing}")


def test_weights_are_set_again_by_a_job_that_began_at_a_state(broker, folder):
    dataset = weighted("mix-of-mixes", folder)
    steps, state = [], None
    for ranks, weights in ((2, [3, 1]), (3, [1, 5]), (1, [2, 1]), (4, [1, 9])):
        with ranks_of_a_job(dataset, ranks, state) as readers:
            steps += steps_of(readers, 9)
            readers[0].set_weights(weights)
            steps += steps_of(readers, 1)
            state = state_of(readers)
    with ranks_of_a_job(dataset, 2, state) as readers:
        steps += steps_of(readers)
    assert [change[2:] for change in state["weights"]] == [[3, 1], [1, 5], [2, 1], [1, 9]]
    assert_same(steps, changed(dataset, state["weights"]), "four jobs in turn")


# ---- several hosts -------------------------------------------------------------


@pytest.fixture(scope="module")
def hosts(broker, environment):
    """The sockets of two brokers, which know nothing of each other."""
    other = penstock.broker(workers=1)
    yield [broker.socket, other.socket]
    other.stop()


@pytest.mark.parametrize("case", CASES)
def test_ranks_of_two_hosts_get_the_one_sequence_together(hosts, folder, case):
    dataset = dataset_of(case, folder)
    one, other = hosts
    wanted = whole(dataset)
    at = random.Random(case).randrange(1, len(wanted))
    for before, after in (([one, other], [one]),
                          ([one, one, other], [one, other, other])):
        what = f"{case}, {len(before)} ranks of {len(set(before))} hosts up to step {at}"
        with ranks_of_a_job(dataset, len(before), hosts=before) as readers:
            assert_same(steps_of(readers, at), wanted[:at], what)
            state = state_of(readers)
        with ranks_of_a_job(dataset, len(after), state, after) as readers:
            assert_same(steps_of(readers), wanted[at:],
                        f"{what}, continued by {len(after)} of {len(set(after))}")


def test_weights_change_at_the_same_row_of_two_hosts(hosts, folder):
    dataset = weighted("mix-of-mixes", folder)
    one, other = hosts
    row = 12 * BATCH + 3
    wanted = changed(dataset, [[0, row, 1, 5]])
    with ranks_of_a_job(dataset, 3, hosts=[one, other, other]) as readers:
        steps = steps_of(readers, 2)
        for reader in readers[:2]:  # one of each host
            reader.set_weights([1, 5], epoch=0, row=row)
        steps += steps_of(readers, 20)
        state = state_of(readers)
    assert_same(steps, wanted[:22], "two hosts")
    with ranks_of_a_job(dataset, 2, state) as readers:
        assert_same(steps_of(readers), wanted[22:], "continued by two ranks of one host")


# ---- beside the serial replay --------------------------------------------------


def assert_bench_verifies(dataset, folder, what):
    """`penstock bench --verify` verifies as many rows as one rank gets."""
    spec = folder / f"{what}.yaml"
    spec.write_text(dataset.to_yaml())
    result = command("bench", "--dataset", spec, "--ranks", 3, "--verify", "--json")
    rows = sum(len(rows) for *_, rows in whole(dataset))
    assert result["verified"] == result["samples"] == rows, what


@pytest.mark.parametrize("case", CASES)
def test_bench_verifies_every_pipeline(broker, folder, case):
    assert_bench_verifies(dataset_of(case, folder), folder, case)


@pytest.mark.parametrize("kept", KEPT)
def test_bench_verifies_random_augmentation_of_rows_that_are_kept(broker, folder, kept):
    steps = [penstock.resize((36, 37)), penstock.flip(), penstock.rand_augment(),
             penstock.crop(penstock.random_pixels(padding=4), 32),
             penstock.normalize(0.5, 0.5), penstock.random_erasing(), penstock.one_hot(13),
             penstock.mixup(0.2)]
    plain = labelled(folder).shuffle(seed=1).map(*steps).batch(16).repeat(EPOCHS)
    dataset = KEPT[kept](plain, folder / "snapshots-bench")
    # The first run writes what the second one reads.
    for run in ("first", "second"):
        assert_bench_verifies(dataset, folder, f"{kept}-{run}")


# ---- the parts of a zip --------------------------------------------------------


def test_a_zip_refuses_a_part_that_would_draw_anew_in_each_epoch(broker):
    zipped = Dataset.zip([Dataset.range(100).sample(50), Dataset.range(50)],
                         ["drawn.", None])
    with pytest.raises(penstock.Error, match=r"zip\.parts\[0\]: a sample .* `select` of the zip"):
        penstock.attach(zipped.batch(10), job="zip")
