"""Pictures and boxes of COCO's instances: what the file has is what a batch has, and boxes
follow their picture through a whole map. Beside torchvision: test_torchvision.py."""

import json

import numpy as np
import penstock
import pytest

Image = pytest.importorskip("PIL.Image", reason="no Pillow")

# A red rectangle in black pictures of several sizes.
PICTURES = [(60, 40, (10, 5, 30, 35)), (33, 80, (0, 0, 12, 60)), (50, 50, (20, 30, 50, 50)),
            (64, 48, None)]


def write(folder, name, content):
    (folder / name).write_text(json.dumps(content))
    return folder / name


@pytest.fixture
def coco(tmp_path):
    (tmp_path / "pictures").mkdir()
    images, annotations = [], []
    for i, (width, height, box) in enumerate(PICTURES):
        pixels = np.zeros((height, width, 3), np.uint8)
        images.append({"id": 10 + i, "file_name": f"{i}.png"})
        if box:
            left, top, right, bottom = box
            pixels[top:bottom, left:right, 0] = 255
            annotations.append({"id": i, "image_id": 10 + i, "category_id": [7, 3][i % 2],
                                "bbox": [left, top, right - left, bottom - top]})
            # Around its first pixel alone.
            annotations.append({"id": 50 + i, "image_id": 10 + i, "category_id": 9,
                                "bbox": [left, top, 0.5, 0.5], "iscrowd": 1, "area": 2.5})
        Image.fromarray(pixels).save(tmp_path / "pictures" / f"{i}.png")
    return write(tmp_path, "instances.json", {
        "images": images[::-1], "annotations": annotations,
        "categories": [{"id": 9, "name": "c"}, {"id": 3, "name": "a"},
                       {"id": 7, "name": "b"}]}), tmp_path / "pictures"


def around_red(picture):
    """The box of what is red, of at least half."""
    y, x = np.nonzero(picture[..., 0] > 127)
    return [x.min(), y.min(), x.max() + 1, y.max() + 1]


def test_what_the_file_has(attach, coco):
    dataset = penstock.Dataset.coco(*coco, max_length=4).map(
        penstock.drop("image")).batch(4)
    batch = attach(dataset).next()
    assert batch["image_id"].tolist() == [10, 11, 12, 13]
    for name in ("boxes", "labels", "area", "iscrowd"):
        assert batch.lengths(name).tolist() == [2, 2, 2, 0]
    assert batch["boxes"][1].tolist() == [[0, 0, 12, 60], [0, 0, 0.5, 0.5], [0] * 4, [0] * 4]
    assert batch["labels"][:, :2].tolist() == [[1, 2], [0, 2], [1, 2], [0, 0]]
    assert batch["area"][0].tolist() == [600, 2.5, 0, 0]
    assert batch["iscrowd"].dtype == bool and batch["iscrowd"][0].tolist() == [0, 1, 0, 0]


def test_options(attach, coco):
    dataset = penstock.Dataset.coco(*coco, labels="ids", crowd="drop").map(
        penstock.drop("image"), penstock.convert_boxes("xyxy", "xywh")).filter(
            "boxes.length", min=1).batch(3)
    batch = attach(dataset).next()
    assert batch["boxes"].tolist() == [[[10, 5, 20, 30]], [[0, 0, 12, 60]], [[20, 30, 30, 20]]]
    assert batch["labels"].tolist() == [[7], [3], [7]]
    with pytest.raises(penstock.InvalidArgument, match=r"images\[3\] \(id 10\) has 2 objects, "
                       ".*room for 1: give max_length 2, or `longer: cut`"):
        attach(penstock.Dataset.coco(*coco, max_length=1).map(
            penstock.drop("image")).batch(3), job="longer")
    (coco[1] / "2.png").unlink()
    with pytest.raises(penstock.NotFound, match=r"images\[1\] \(id 12\): .*2\.png"):
        attach(penstock.Dataset.coco(*coco).map(penstock.drop("image")).batch(3),
               job="missing")


STEPS = {
    "whole": [penstock.decode_image(64, boxes="boxes", exact=True)],
    "random_resized": [penstock.decode_image([48, 96], "random_resized", boxes="boxes")],
    "at": [penstock.decode_image(40, penstock.at(2, 3, 25, 20), boxes="boxes")],
    "fit": [penstock.decode_image(90, "fit", boxes="boxes")],
    "several": [
        penstock.decode_image(64, penstock.center_pixels(shorter=80), boxes="boxes"),
        penstock.flip(horizontal=0.5, vertical=0.5, boxes="boxes"),
        penstock.pad([3, 4, 5, 6], boxes="boxes"),
        penstock.crop(penstock.random_pixels(2), 60, boxes="boxes"),
        penstock.resize([50, 90], boxes="boxes")],
    "turned": [penstock.decode_image(64, boxes="boxes"),
               penstock.rotate([90, 90], boxes="boxes"), penstock.flip(1, boxes="boxes")],
    "moved": [penstock.decode_image(64, boxes="boxes"),
              penstock.affine(translate=[0.2, 0.2], scale=[0.7, 1.2], boxes="boxes")],
}


@pytest.mark.parametrize("steps", STEPS.values(), ids=STEPS)
def test_boxes_follow_their_picture(attach, coco, steps):
    dataset = (penstock.Dataset.coco(*coco).filter("boxes.length", min=1).shuffle(1)
               .map(*steps).batch(3).repeat(12))
    seen = 0
    for batch in attach(dataset):
        for picture, (box, _) in zip(batch["image"], batch["boxes"]):
            size = box[2:] - box[:2]
            if size.min() < 2:
                continue  # its picture has none of it, or next to nothing
            seen += 1
            assert np.abs(around_red(picture) - box).max() <= 1
    assert seen >= 18


def test_what_is_known_of_boxes_is_so_behind_a_cache_and_in_a_zip(attach, coco):
    dataset = penstock.Dataset.coco(*coco).map(
        penstock.decode_image(64, boxes="boxes"), penstock.flip()).batch(4)
    with pytest.raises(penstock.InvalidArgument, match="but not its boxes 'boxes'"):
        attach(dataset.cache("8M", at=1))
    dataset = penstock.Dataset.zip([penstock.Dataset.coco(*coco)], ["a."]).map(
        penstock.decode_image(64, feature="a.image"))
    with pytest.raises(penstock.InvalidArgument, match="but not its boxes 'a.boxes'"):
        attach(dataset.batch(4))


@pytest.mark.parametrize("at", [0, 1, 2])
def test_rows_that_are_kept_are_the_same(attach, coco, at):
    """Also where the picture, and what its boxes ask of its file, is kept encoded."""
    dataset = penstock.Dataset.coco(*coco).map(
        penstock.decode_image(64, penstock.fit(), boxes="boxes"),
        penstock.resize(50, boxes="boxes"),
        penstock.flip(boxes="boxes")).batch(4).repeat(3)
    batches = zip(attach(dataset, job="made"),
                  attach(dataset.cache("8M", at=at), job="kept"))
    for made, kept in batches:
        for name in ("image", "boxes", "boxes.length", "labels"):
            np.testing.assert_array_equal(made[name], kept[name])


def test_sanitize(attach, coco):
    dataset = penstock.Dataset.coco(*coco).map(
        penstock.decode_image(60, penstock.at(0, 0, 40, 33), boxes="boxes"),
        penstock.sanitize_boxes("labels", min_size=2),
        penstock.cast("float32", "chw")).batch(4)
    with pytest.raises(penstock.DataLoss, match="`at` takes rows to 40"):
        small = write(coco[1], "small.json", {
            "images": [{"id": 1, "file_name": "s.png"}], "annotations": [], "categories": []})
        Image.new("RGB", (20, 20)).save(coco[1] / "s.png")
        attach(penstock.Dataset.coco(small, coco[1]).map(*dataset.to_dict()["map"]).batch(1),
               job="small").next()
    batch = attach(dataset).next()
    for name in ("boxes", "labels", "area", "iscrowd"):
        assert batch.lengths(name).tolist() == [1, 1, 1, 0]
    assert batch["labels"].tolist() == [[1, 0], [0, 0], [1, 0], [0, 0]]
    assert not batch["boxes"][:, 1:].any() and not batch["iscrowd"].any()
    width, height = 60 / 33, 60 / 40
    np.testing.assert_allclose(batch["boxes"][2, 0],
                               [20 * width, 30 * height, 60, 60], rtol=1e-6)


def test_a_row_without_boxes_and_a_single_box(attach, tmp_path):
    np.save(tmp_path / "image.npy", np.zeros((2, 8, 10, 3), np.uint8))
    np.save(tmp_path / "box.npy", np.array([[1, 2, 3, 4], [0, 0, 10, 8]], np.float32))
    batch = attach(penstock.Dataset.npy({
        "image": tmp_path / "image.npy", "box": tmp_path / "box.npy"}).map(
            penstock.flip(1, boxes="box")).batch(2)).next()
    assert batch["box"].tolist() == [[7, 2, 9, 4], [0, 0, 10, 8]]


@pytest.mark.parametrize("steps,message", [
    ([penstock.decode_image(8, boxes="boxes"), penstock.flip()],
     r"map\[1\].flip: moves pixels of 'image', but not its boxes 'boxes': name them in `boxes`"),
    ([penstock.decode_image(8, "random_resized"), penstock.flip()],
     r"map\[0\].decode_image: moves pixels of 'image', but not its boxes 'boxes': name them in "
     "`boxes`, or `drop` them before"),
    ([penstock.convert_boxes("xywh", "xyxy")],
     "wants xywh boxes, but 'boxes' are xyxy by now: name that in `from`"),
    ([penstock.convert_boxes("xyxy", "cxcywh"), penstock.decode_image(8, boxes="boxes")],
     "wants xyxy boxes, but 'boxes' are cxcywh by now: put convert_boxes after it"),
    ([penstock.decode_image(8, boxes="boxes"), penstock.resize(9)], "name them in `boxes`"),
    ([penstock.decode_image(8, boxes="boxes"), penstock.rand_augment()],
     "it takes none; flip, crop, affine and the like do"),
    ([penstock.decode_image(8, boxes="boxes"), penstock.cutmix(label=[])],
     "'boxes' are boxes of 'image', and would be of no mixture"),
    ([penstock.decode_image(8, boxes=["boxes", "labels"])],
     r"wants boxes float32 \[n, 4\], found labels int64 \[2\]; `cast`"),
    ([penstock.decode_image(8, boxes=["boxes", "area"])],
     r"wants boxes float32 \[n, 4\], found area"),
    ([penstock.drop("boxes"), penstock.decode_image(8), penstock.flip(boxes="none")],
     "no feature 'none'"),
    ([penstock.decode_image(8, boxes="boxes"), penstock.flip(feature=[], boxes="boxes")],
     r"map\[1\].flip: names no feature"),
    ([penstock.sanitize_boxes([])], "feature 'image' is encoded; put decode_image before it"),
    ([penstock.decode_image(8, boxes="boxes"), penstock.sanitize_boxes(["image_id"])],
     "wants lists, .* found image_id int64 .* without a 'image_id.length'"),
], ids=str)
def test_what_is_wrong_is_told(attach, coco, steps, message):
    with pytest.raises(penstock.InvalidArgument, match=message):
        attach(penstock.Dataset.coco(*coco).map(*steps).batch(2))


def test_masks_as_the_file_has_them(attach, tmp_path):
    polygons, rle = [[1, 2, 9.5, 2, 9.5, 8]], {"counts": "<X91^1", "size": [20, 30]}
    Image.fromarray(np.zeros((20, 30, 3), np.uint8)).save(tmp_path / "a.png")
    path = write(tmp_path, "instances.json", {
        "images": [{"id": 4, "file_name": "a.png"}], "categories": [{"id": 1, "name": "a"}],
        "annotations": [{"image_id": 4, "category_id": 1, "bbox": [1, 2, 3, 4],
                         "segmentation": each} for each in (polygons, rle)]})
    dataset = penstock.Dataset.coco(path, tmp_path, segmentation=True).map(
        penstock.drop("image")).batch(1)
    batch = attach(dataset).next()
    text = batch["segmentation"][0, :batch["segmentation_bytes"][0]].tobytes()
    assert json.loads(text) == [polygons, rle]
