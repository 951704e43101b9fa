"""Parts with steps and batches of their own: the same sequence for any ranks and resume."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import penstock
import pytest

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
WIDE, TALL, TASK = 20, 13, 9  # records of each part
SIZES = [4, 3, 2]
NAMES = ["wide", "tall", "task"]


def arrays():
    random = np.random.default_rng(1)
    return {"wide": random.integers(0, 256, (WIDE, 4, 9, 3)).astype(np.uint8),
            "tall": random.integers(0, 256, (TALL, 9, 4, 3)).astype(np.uint8),
            "task": random.normal(size=(TASK, 2, 2, 3)).astype(np.float32)}


def parts(folder):
    """Pictures of two shapes, and a task of other features."""
    for name, array in arrays().items():
        np.save(folder / f"{name}.npy", array)
        np.save(folder / f"{name}_label.npy", np.arange(len(array)))
    files = {name: {"image": folder / f"{name}.npy", "label": folder / f"{name}_label.npy"}
             for name in NAMES}
    return [
        penstock.Dataset.npy(files["wide"]).map(
            penstock.flip(0.5), penstock.cast("float32")),
        penstock.Dataset.npy(files["tall"]).map(
            penstock.cast("float32"), penstock.rescale(1 / 255)),
        penstock.Dataset.npy({"x": files["task"]["image"],
                              "label": files["task"]["label"]}).map(
            penstock.rename({"x": "image"})),
    ]


def dataset(folder, **options):
    return (penstock.Dataset.mix(
        [part.batch(size) for part, size in zip(parts(folder), SIZES)], [2, 1, 1],
        when_out="drop", **options).shuffle(seed=3)
        .map(penstock.one_hot(WIDE, feature="label")).repeat(2))


def sequence(readers):
    """(part, ids, images, labels) of each global batch."""
    batches = []
    for step in zip(*readers):
        assert len({batch.part for batch in step}) == 1
        batches.append((step[0].part, *(
            np.concatenate(values).tobytes() for values in (
                [batch.ids for batch in step],
                [batch["image"] for batch in step],
                [batch["label"] for batch in step]))))
    return batches


@pytest.fixture
def run(attach_all):
    def sequence_of(data, ranks, job, state=None):
        return sequence(attach_all(data, ranks, job, state=state))
    return sequence_of


def test_each_batch_is_of_one_part_with_its_shape_and_steps(attach, tmp_path):
    reader = attach(dataset(tmp_path))
    assert reader.element_spec["image"] == ((None, None, 3), "float32")
    assert reader.element_spec["label"] == ((WIDE,), "float32")
    of = arrays()
    first = [0, WIDE, WIDE + TALL]
    seen = [set(), set(), set()]
    for epoch in reader.epochs():
        for each in seen:
            each.clear()
        for batch in epoch:
            part = batch.part
            assert batch.rows == SIZES[part]
            assert batch["image"].shape == (SIZES[part], *of[NAMES[part]].shape[1:])
            assert f"image: float32{list(batch['image'].shape)}" in repr(batch)
            for i, image, label in zip(batch.ids - first[part], batch["image"],
                                       batch["label"]):
                raw = of[NAMES[part]][i].astype(np.float32)
                if part == 0:
                    assert any(np.array_equal(image, each)
                               for each in (raw, raw[:, ::-1]))
                elif part == 1:
                    assert np.allclose(image, raw / 255)
                else:
                    assert np.array_equal(image, raw)
                assert label.argmax() == i and label.sum() == 1
                assert i not in seen[part]
                seen[part].add(i)
        # All but those that fill no batch.
        assert [len(each) for each in seen] == [20, 12, 8]


def test_the_same_sequence_for_any_ranks_and_resume(attach, run, tmp_path):
    data = dataset(tmp_path)
    whole = run(data, 1, "whole")
    steps = 20 // 4 + 13 // 3 + 9 // 2
    assert len(whole) == 2 * steps
    assert run(data, 3, "ranks") == whole
    for taken in (1, 7, steps, steps + 5):
        reader = attach(data, job=f"first{taken}")
        assert [batch.part for _, batch in zip(range(taken), reader)] == [
            each[0] for each in whole[:taken]]
        state = reader.state_dict()
        reader.close()
        for ranks in (1, 2):
            rest = run(data, ranks, f"rest{taken}-{ranks}", state)
            assert rest == whole[taken:]


def test_a_state_is_of_these_sizes(attach, tmp_path):
    data = dataset(tmp_path)
    reader = attach(data, job="a")
    next(iter(reader))
    state = reader.state_dict()
    reader.close()
    with pytest.raises(penstock.FailedPrecondition, match="another order"):
        attach(data.batch(by_part=[2, 3, 4]), job="b", state=state)


@pytest.mark.parametrize("delivery", ["dynamic", "broadcast"])
def test_whole_batches_of_one_part_in_other_deliveries(attach_all, tmp_path, delivery):
    data = dataset(tmp_path)
    readers = attach_all(data, 2, delivery, delivery=delivery)
    taken = [[], []]
    with ThreadPoolExecutor(2) as pool:
        def take(rank):
            for batch in readers[rank]:
                assert batch.rows == SIZES[batch.part]
                taken[rank].append((batch.epoch, batch.step, batch.part, *batch.ids))
        list(pool.map(take, range(2)))
    alone = attach_all(data, 1, delivery + "-alone", delivery="split")[0]
    all_batches = [(batch.epoch, batch.step, batch.part, *batch.ids) for batch in alone]
    if delivery == "broadcast":
        assert taken == [all_batches, all_batches]
    else:
        assert sorted(taken[0] + taken[1]) == sorted(all_batches)


@pytest.mark.parametrize("ranks", [1, 3])
def test_bench_verifies_it(tmp_path, ranks):
    spec = tmp_path / "spec.json"
    spec.write_text(dataset(tmp_path).to_json())
    made = subprocess.run(
        [PENSTOCK, "bench", "--dataset", spec, "--ranks", str(ranks), "--epochs", "2", "--verify",
         "--json"], capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout)["verified"] == 2 * (20 + 12 + 8)


def test_parts_of_one_shape_need_no_batches_of_their_own(attach, tmp_path):
    parts(tmp_path)
    same = [
        penstock.Dataset.npy({"image": tmp_path / "wide.npy",
                              "label": tmp_path / "wide_label.npy"}).map(
            penstock.resize((3, 3))),
        penstock.Dataset.npy({"picture": tmp_path / "tall.npy",
                              "label": tmp_path / "tall_label.npy"}).map(
            penstock.rename({"picture": "image"}), penstock.resize((3, 3)))]
    for made in (penstock.Dataset.concat(same),
                 penstock.Dataset.mix(same, when_out="drop")):
        rows = 0
        for batch in attach(made.batch(5), job=made.name):
            assert batch.part is None
            assert batch["image"].shape == (batch.rows, 3, 3, 3)
            rows += batch.rows
        assert rows == WIDE + TALL


def test_rows_are_kept_as_the_steps_of_each_part_make_them(run, tmp_path):
    parts(tmp_path)
    same = [
        penstock.Dataset.npy({"image": tmp_path / "wide.npy",
                              "label": tmp_path / "wide_label.npy"}).map(
            penstock.resize((3, 3))),
        penstock.Dataset.npy({"image": tmp_path / "tall.npy",
                              "label": tmp_path / "tall_label.npy"}).map(
            penstock.invert(1), penstock.resize((3, 3)))]
    data = (penstock.Dataset.mix(same, when_out="drop").shuffle(seed=1)
            .map(penstock.flip(0.5)).batch(4).repeat(3))
    plain = run(data, 1, "plain")
    assert run(data.cache(memory="1M"), 1, "kept") == plain


def test_what_cannot_be_says_the_way_out(attach, tmp_path):
    first, second, third = parts(tmp_path)
    with pytest.raises(penstock.InvalidArgument, match="shapes may differ"):
        attach(penstock.Dataset.mix([first, second]).batch(4))
    with pytest.raises(penstock.InvalidArgument, match="put it into `map`"):
        attach(penstock.Dataset.mix([first.map(penstock.mixup(label=[])), second])
               .batch(4))
    with pytest.raises(penstock.InvalidArgument, match="use multiples of 4"):
        attach(dataset(tmp_path).map(penstock.mixup()))
    with pytest.raises(ValueError, match="or none has one"):
        penstock.Dataset.mix([first.batch(4), second])
    with pytest.raises(ValueError, match="has no shuffle"):
        penstock.Dataset.mix([first.shuffle(), third])
    with pytest.raises(ValueError, match="has no batch"):
        penstock.Dataset.concat([first.batch(4), second.batch(3)])
    reader = attach(dataset(tmp_path), job="weights")
    with pytest.raises(penstock.InvalidArgument, match="mix.schedule"):
        reader.set_weights([1, 1, 1])
    # While the dataset is open with batches of its own.
    with pytest.raises(penstock.InvalidArgument, match="shapes may differ"):
        attach(dataset(tmp_path).batch(4), job="all in one")


def test_mixup_of_batches_of_four(run, tmp_path):
    data = dataset(tmp_path).batch(by_part=[4, 4, 8]).map(penstock.mixup(0.4))
    whole = run(data, 1, "whole")
    assert {each[0] for each in whole} == {0, 1, 2}
    assert run(data, 3, "ranks") == whole
