"""Promise: a copy of a feature is that feature under another name; steps on each have random
numbers of their own, and one step on both the same. Method: a view beside the same steps on
a picture that has no copy, whose steps have the same numbers."""

import json

import numpy as np
import penstock
import pytest

Image = pytest.importorskip("PIL.Image", reason="no Pillow")

SEED = 7
NOTHING = penstock.rename({"image": "image"})  # a step, so that the next has its number


@pytest.fixture
def pictures(tmp_path):
    draw = np.random.default_rng(1)
    for i in range(8):
        colours = draw.integers(0, 256, (5, 6, 3), np.uint8)
        Image.fromarray(colours).resize((90, 70)).save(tmp_path / f"{i}.png")
    return penstock.Dataset.image_folder(tmp_path, labels="none")


@pytest.fixture
def rows_of(attach):
    def run(dataset, *steps, epochs=1):
        with attach(dataset.map(*steps).batch(8).seed(SEED).repeat(epochs)) as reader:
            batches = [{name: np.array(batch[name]) for name in batch} for batch in reader]
        return batches[0] if epochs == 1 else batches
    return run


def crop(feature="image"):
    return penstock.crop("random_resized", 32, feature)


def test_two_views_of_one_decoding(rows_of, pictures):
    """SimCLR's pairs."""
    decode = penstock.decode_image((70, 90))
    flips = [penstock.flip(feature=["image", "view_2"])]
    made = rows_of(pictures, decode, penstock.copy({"image": "view_2"}), crop(),
                   crop("view_2"), *flips)
    assert list(made) == ["image", "view_2"]
    first = rows_of(pictures, decode, NOTHING, crop(), NOTHING, penstock.flip())
    second = rows_of(pictures, decode, NOTHING, NOTHING, crop(), penstock.flip())
    np.testing.assert_array_equal(made["image"], first["image"])
    np.testing.assert_array_equal(made["view_2"], second["image"])
    assert all((a != b).any() for a, b in zip(made["image"], made["view_2"]))


def test_one_step_on_both_is_the_same(rows_of, pictures):
    made = rows_of(pictures, penstock.decode_image((70, 90)),
                   penstock.copy({"image": ["view_2", "view_3"]}),
                   crop(["image", "view_2"]), crop("view_3"))
    assert list(made) == ["image", "view_2", "view_3"]
    np.testing.assert_array_equal(made["image"], made["view_2"])
    assert (made["image"] != made["view_3"]).any()


def test_views_of_a_file(rows_of, pictures):
    """DINO's: each is decoded from the file, at its own size."""
    decode = penstock.decode_image(48, "random_resized")
    small = penstock.decode_image(16, "random_resized")
    made = rows_of(pictures, penstock.copy({"image": "local"}), decode,
                   penstock.decode_image(16, "random_resized", feature="local"))
    np.testing.assert_array_equal(made["image"], rows_of(pictures, NOTHING, decode)["image"])
    np.testing.assert_array_equal(
        made["local"], rows_of(pictures, NOTHING, NOTHING, small)["image"])


def test_a_copy_has_the_layout_and_the_values_so_far(rows_of, pictures):
    made = rows_of(pictures, penstock.decode_image(32), penstock.flip(horizontal=1),
                   penstock.normalize(0.5, 0.5, layout="chw"),
                   penstock.copy({"image": "clean"}),
                   penstock.random_erasing(probability=1))
    wanted = rows_of(pictures, penstock.decode_image(32), penstock.flip(horizontal=1),
                     penstock.normalize(0.5, 0.5, layout="chw"))["image"]
    np.testing.assert_array_equal(made["clean"], wanted)
    assert all((a != b).any() for a, b in zip(made["image"], made["clean"]))


def test_cached_rows_are_copied_anew(rows_of, pictures):
    steps = [penstock.decode_image(40), penstock.copy({"image": "view_2"}), crop(),
             crop("view_2")]
    kept = rows_of(pictures.cache(memory="64M"), *steps, epochs=3)
    for one, other in zip(kept, rows_of(pictures, *steps, epochs=3)):
        for name in one:
            np.testing.assert_array_equal(one[name], other[name])


def test_lengths_go_along(attach, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"t": [1, 2, 3]}\n{"t": [4]}\n')
    dataset = penstock.Dataset.json_lines(
        tmp_path / "a.jsonl", {"t": {"dtype": "int64", "max_length": 5}}).map(
            penstock.copy({"t": ["u", "v"]}), penstock.cast("float32", feature="u"))
    batch = attach(dataset.batch(2)).next()
    assert list(batch) == ["t", "u", "v", "t.length", "u.length", "v.length"]
    assert batch["u"].dtype == np.float32 and batch["u"].tolist() == batch["t"].tolist()
    assert batch.lengths("v").tolist() == batch.lengths("t").tolist() == [3, 1]


def test_boxes_go_with_the_copy_of_their_picture(rows_of, tmp_path):
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(tmp_path / "a.png")
    (tmp_path / "instances.json").write_text(json.dumps({
        "images": [{"id": 0, "file_name": "a.png"}],
        "annotations": [{"id": 1, "image_id": 0, "category_id": 0, "iscrowd": 0,
                         "area": 20, "bbox": [2, 3, 4, 5]}],
        "categories": [{"id": 0, "name": "a"}]}))
    source = penstock.Dataset.coco(tmp_path / "instances.json", tmp_path)
    steps = [penstock.decode_image((20, 30), boxes="boxes"),
             penstock.copy({"boxes": "boxes_2", "image": "view_2"})]
    made = rows_of(source, *steps, penstock.flip(horizontal=1, feature="view_2",
                                                 boxes="boxes_2"))
    assert made["boxes"][0, 0].tolist() == [2, 3, 6, 8]
    assert made["boxes_2"][0, 0].tolist() == [24, 3, 28, 8]
    with pytest.raises(penstock.InvalidArgument, match="but not its boxes 'boxes_2'"):
        rows_of(source, *steps, penstock.flip(feature="view_2"))
    with pytest.raises(penstock.InvalidArgument, match="'boxes_2' are those of 'view_2'"):
        rows_of(source, *steps, penstock.flip(boxes=["boxes", "boxes_2"]))
