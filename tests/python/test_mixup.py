"""mixup and cutmix mix rows of the global order: the same for any ranks, batch and resume."""

import json
import os
import subprocess
import sys

import numpy as np
import penstock
import pytest

PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")
ROWS = 23
STEPS = {"mixup": [penstock.mixup(0.4)], "cutmix": [penstock.cutmix()],
         "both": [penstock.mixup(1, cutmix_alpha=1, probability=0.9)],
         "twice": [penstock.mixup(0.4), penstock.cutmix(probability=0.5)]}


def images():
    return np.random.default_rng(1).normal(size=(ROWS, 6, 5, 1)).astype(np.float32)


def dataset(folder, steps, classes=ROWS):
    """Row i is of class i: a mixed label says which rows are in it, and how much of each."""
    np.save(folder / "images.npy", images())
    np.save(folder / "labels.npy", np.arange(ROWS))
    return (penstock.Dataset.npy({"image": folder / "images.npy",
                                  "label": folder / "labels.npy"})
            .shuffle(seed=3).map(penstock.one_hot(classes, feature="label"), *steps)
            .repeat(2))


def sequence(readers):
    """(id, image, label) of each row, in the order of the global batches."""
    return [(int(i), image.tobytes(), label.tobytes())
            for step in zip(*readers) for batch in step
            for i, image, label in zip(batch.ids, batch["image"], batch["label"])]


@pytest.mark.parametrize("name", STEPS)
def test_the_same_rows_for_any_batch_ranks_and_resume(attach, attach_all, tmp_path, name):
    data = dataset(tmp_path, STEPS[name])

    def run(batch, ranks, job, state=None):
        return sequence(attach_all(data.batch(batch), ranks, job, state=state))

    whole = run(8, 1, "whole")
    assert len(whole) == 2 * ROWS
    assert run(7, 3, "ranks") == whole
    reader = attach(data.batch(5), job="first")
    batches = iter(reader)
    first = [i for _ in range(3) for i in next(batches).ids.tolist()]
    assert first == [row[0] for row in whole[:15]]
    state = reader.state_dict()
    reader.close()
    assert run(5, 2, "rest", state) == whole[15:]


def test_each_row_is_mixed_with_another(attach, tmp_path):
    of = images()
    reader = attach(dataset(tmp_path, STEPS["mixup"]).batch(6))
    partners = []
    for batch in reader:
        for i, image, label in zip(batch.ids.tolist(), batch["image"], batch["label"]):
            label = np.array(label)
            (j,) = [k for k in np.argsort(-label)[:2].tolist() if k != i]
            assert np.isclose(label[i] + label[j], 1, atol=1e-6)
            assert np.array_equal(image, of[j] * label[j] + of[i] * label[i])
            partners.append((i, j))
    # All of an epoch but its last row are pairs.
    for epoch in (partners[:ROWS], partners[ROWS:]):
        partner = dict(epoch)
        assert len(partner) == ROWS
        alone = [i for i, j in epoch if partner[j] != i]
        assert alone == [epoch[-1][0]]


def test_a_row_without_its_partner_stays_as_it_is(attach_all, tmp_path):
    # Class 20 and above are out of range.
    data = dataset(tmp_path, STEPS["mixup"], classes=20)
    of = images()

    def run(batch, ranks):
        return sequence(attach_all(data.batch(batch).on_error("skip"), ranks, f"{ranks}"))

    rows = run(8, 1)
    assert len(rows) == 2 * 20
    assert run(7, 3) == rows
    unmixed = {i for i, image, _ in rows if image == of[i].tobytes()}
    assert 1 <= len(unmixed) <= 6


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("on_error", ["skip", "substitute"])
def test_bench_verifies_it(tmp_path, ranks, on_error):
    spec = tmp_path / "spec.json"
    data = dataset(tmp_path, STEPS["both"], classes=20).batch(10).on_error(on_error)
    spec.write_text(data.to_json())
    run = subprocess.run([PENSTOCK, "bench", "--dataset", spec, "--ranks", str(ranks),
                          "--verify", "--json"], capture_output=True, text=True,
                         timeout=60, check=False)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["verified"] == 2 * (20 if on_error == "skip" else ROWS)


def test_rows_of_a_stream_are_not_mixed(attach):
    data = penstock.Dataset.stream({"image": penstock.TensorSpec((2, 2), "float32")})
    with pytest.raises(penstock.InvalidArgument, match="cannot be made again"):
        attach(data.map(penstock.mixup(label=[])).batch(2))
