"""A spec written in Python is the one a YAML file has."""

import ast
import inspect
import json
import os
import re
import subprocess
import sys

import numpy as np
import penstock
import pytest
import yaml

IMAGENET = """
dataset: imagenet-train
source:
  image_folder: {path: /data/imagenet/train}
shuffle: {seed: 42}
map:
  - decode_image: {crop: {random_resized: {scale: [0.08, 1.0], ratio: [0.75, 1.3333]}}, size: [224, 224]}
  - flip: {horizontal: 0.5}
  - normalize: {mean: [0.485, 0.456, 0.406], std: [0.229, 0.224, 0.225], dtype: float16, layout: chw}
batch: {size: 2048, last: partial}
epochs: 90
prefetch: 2
"""


def test_it_reads_like_tf_data_and_says_what_yaml_says():
    dataset = (
        penstock.Dataset.image_folder("/data/imagenet/train",
                                      name="imagenet-train")
        .shuffle(seed=42)
        .map(penstock.decode_image(
                 size=(224, 224),
                 crop=penstock.random_resized(scale=(0.08, 1.0),
                                              ratio=(0.75, 1.3333))),
             penstock.flip(horizontal=0.5))
        .map(penstock.normalize(mean=(0.485, 0.456, 0.406),
                                std=(0.229, 0.224, 0.225), dtype="float16",
                                layout="chw"))
        .batch(2048, last="partial").repeat(90).prefetch(2))
    assert dataset.to_dict() == yaml.safe_load(IMAGENET)
    assert yaml.safe_load(dataset.to_yaml()) == dataset.to_dict()
    assert json.loads(dataset.to_json()) == dataset.to_dict()


def test_a_picture_may_be_turned_upright():
    step = penstock.decode_image(8, orientation="apply")
    dataset = penstock.Dataset.image_folder("/data").map(step).batch(1)
    assert dataset.to_dict()["map"] == [
        {"decode_image": {"size": 8, "orientation": "apply"}}]


def test_a_folder_may_have_no_labels_but_masks(tmp_path):
    dataset = penstock.Dataset.image_folder(
        "/data", labels="none",
        masks=penstock.masks(tmp_path, suffix="_mask.png", on_missing="skip"))
    assert dataset.to_dict()["source"] == {"image_folder": {
        "path": "/data", "labels": "none", "masks": {
            "path": str(tmp_path), "suffix": "_mask.png", "on_missing": "skip"}}}


def test_a_step_may_have_several_features_and_masks():
    steps = [penstock.decode_image(8, mask="mask", mask_dtype=np.int32),
             penstock.crop("center", 4, ("left", "right")),
             penstock.flip(mask=["a", "b"])]
    dataset = penstock.Dataset.image_folder("/data").map(*steps).batch(1)
    assert dataset.to_dict()["map"] == [
        {"decode_image": {"size": 8, "mask": "mask", "mask_dtype": "int32"}},
        {"crop": {"center": {}, "size": 4, "feature": ["left", "right"]}},
        {"flip": {"mask": ["a", "b"]}}]


def test_steps_leave_what_they_are_called_on():
    base = penstock.Dataset.range(8)
    base.batch(4)
    assert "batch" not in base.to_dict()
    assert base == penstock.Dataset.range(8)


def test_numpy_values_and_paths(tmp_path):
    dataset = penstock.Dataset.idx(tmp_path / "images").batch(np.int64(4))
    assert dataset.to_dict()["source"]["idx"] == {
        "images": str(tmp_path / "images")}
    assert dataset.to_dict()["batch"] == {"size": 4}


def test_a_file_keeps_its_relative_paths(tmp_path):
    (tmp_path / "spec.yaml").write_text(
        "dataset: d\nsource: {image_folder: {path: pictures}}\n"
        "batch: {size: 2}\n")
    dataset = penstock.Dataset.from_file(tmp_path / "spec.yaml")
    assert dataset.to_dict()["source"]["image_folder"]["path"] == str(
        tmp_path / "pictures")


def test_patterns_and_lists_of_files_are_relative_to_the_spec(tmp_path):
    path = tmp_path / "spec.yaml"
    for files, wanted in (
            ("a-{0..2}.tar", str(tmp_path / "a-{0..2}.tar")),
            ("['*.tar', /b.tar]", [str(tmp_path / "*.tar"), "/b.tar"]),
            ("{list: l.txt}", {"list": str(tmp_path / "l.txt")})):
        path.write_text("dataset: d\nbatch: {size: 2}\nsource:\n  webdataset:\n"
                        f"    files: {files}\n    features: {{x: {{encoded: true}}}}\n")
        dataset = penstock.Dataset.from_file(path)
        assert dataset.to_dict()["source"]["webdataset"]["files"] == wanted
    listed = penstock.Dataset.text_lines({"list": tmp_path / "l"}, 8)
    assert listed.to_dict()["source"]["text_lines"]["files"] == {
        "list": str(tmp_path / "l")}


# Every source and operation, as the broker takes it.
PICTURES = np.arange(2 * 6 * 8 * 3, dtype=np.uint8).reshape(2, 6, 8, 3)


@pytest.mark.parametrize("operations,spec", [
    ([penstock.resize((3, 4))], ((3, 4, 3), "uint8")),
    ([penstock.crop("center", 4)], ((4, 4, 3), "uint8")),
    ([penstock.crop(penstock.center(fraction=0.5), (2, 3))], ((2, 3, 3), "uint8")),
    ([penstock.crop(penstock.random_resized(), 4), penstock.flip()],
     ((4, 4, 3), "uint8")),
    ([penstock.cast("float32", layout="chw")], ((3, 6, 8), "float32")),
    ([penstock.normalize(0.5, 0.5, dtype="float16", layout="chw")],
     ((3, 6, 8), "float16")),
])
def test_every_operation_on_a_picture(attach, operations, spec):
    dataset = penstock.Dataset.tensors({"image": PICTURES}).map(
        *operations).batch(2)
    reader = attach(dataset)
    assert reader.element_spec["image"] == penstock.TensorSpec(*spec)
    reader.next()


def test_fixed_length_records(attach, tmp_path):
    path = tmp_path / "records"
    np.arange(12, dtype="<i4").tofile(path)
    dataset = penstock.Dataset.fixed_length_records(
        path, {"x": {"dtype": "int32", "shape": [3]}}).batch(4)
    assert attach(dataset).next()["x"].tolist() == [
        [0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 11]]


def test_bools(attach, tmp_path):
    mask = np.array([[[True, False]], [[False, False]]])
    dataset = penstock.Dataset.tensors({"mask": mask, "flag": [False, True]}).map(
        penstock.flip(1, feature="mask")).batch(2)
    reader = attach(dataset, job="bools")
    assert reader.element_spec == {"mask": penstock.TensorSpec((1, 2), "bool"),
                                   "flag": penstock.TensorSpec((), "bool")}
    batch = reader.next()
    assert batch["mask"].dtype == batch["flag"].dtype == bool
    assert batch["mask"].tolist() == [[[False, True]], [[False, False]]]
    assert batch["flag"].tolist() == [False, True]

    # One byte each; what is neither 0 nor 1 is no bool, and can be made one.
    path = tmp_path / "masks"
    path.write_bytes(bytes([0, 1, 1, 7]))
    records = penstock.Dataset.fixed_length_records
    spec = {"mask": penstock.TensorSpec((2,), np.bool_)}
    dataset = records(path, spec).batch(1)
    assert dataset.to_dict()["source"]["fixed_length_records"]["features"] == {
        "mask": {"dtype": "bool", "shape": [2]}}
    reader = attach(dataset, job="bools-of-a-file")
    with pytest.raises(penstock.DataLoss, match=r"sample 1 in .*masks, offset 2: "
                                                r"feature 'mask': byte 1 of its row is "
                                                r"7; a bool is 0 or 1.*cast"):
        for batch in reader:
            assert batch["mask"].tolist() == [[False, True]]
    skipping = attach(records(path, spec).batch(2).on_error("skip"), job="bools-skip")
    assert skipping.next()["mask"].tolist() == [[False, True]]
    cast = records(path, {"mask": penstock.TensorSpec((2,), "uint8")}).map(
        penstock.cast("bool", feature="mask")).batch(2)
    assert attach(cast, job="bools-cast").next()["mask"].tolist() == [
        [False, True], [True, True]]


@pytest.mark.parametrize("dataset,message", [
    (penstock.Dataset.range(8).map(penstock.flip(), penstock.cast("float33")).batch(4),
     "spec: map[1].cast.dtype: unknown value 'float33'; did you mean 'float32'?"),
    (penstock.Dataset.range(8).map({"cast": {"dtpye": "int8"}}).batch(4),
     "spec: map[0].cast: unknown key 'dtpye'; did you mean 'dtype'?"),
    (penstock.Dataset.range(8), "spec: batch is missing"),
    (penstock.Dataset.range(8).batch(0),
     "spec: batch.size: wanted a whole number from 1 to 16777216, found '0'"),
    (penstock.Dataset.tensors({"x": [[1, 2], [3]]}).batch(1),
     "spec: source.tensors.features.x[1]: ragged: "),
    (penstock.Dataset.tensors({"x": list(range(100_000))}).batch(1),
     "bytes"),
])
def test_errors_name_the_key_and_no_line(attach, dataset, message):
    with pytest.raises(penstock.InvalidArgument) as failure:
        attach(dataset)
    assert message in str(failure.value)
    assert not re.search(r":\d+:\d+", str(failure.value))


def test_a_path_of_any_characters(attach, tmp_path):
    path = tmp_path / "\u00e4\u2028\U0001f600"
    path.write_bytes(bytes(8))
    dataset = penstock.Dataset.fixed_length_records(
        path, {"x": penstock.TensorSpec((), "int64")}).batch(1)
    assert json.loads(dataset.to_json()) == dataset.to_dict()
    assert attach(dataset).next()["x"].tolist() == [0]
    with pytest.raises(penstock.InvalidArgument, match="not valid Unicode"):
        attach(dataset.named("\ud800"))


def test_errors_in_a_file_name_the_line(attach, tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("dataset: d\nsource: {range: 8}\nbatch: {size: 0}\n")
    with pytest.raises(penstock.InvalidArgument, match=r"spec.yaml:3:15: batch.size: "):
        attach(path)


def test_every_option_of_the_job(attach):
    dataset = (penstock.Dataset.range(2, 20, 2).named("all").shuffle(3, False)
               .seed(4).batch(per_rank=3, last="drop").repeat().prefetch(3)
               .hold(3).steps_per_epoch(2).on_error("skip"))
    reader = attach(dataset)
    assert reader.epoch_count is None
    assert reader.steps_per_epoch == 2
    assert reader.stats()["hold_max"] == 3


def test_a_spec_file_is_read_as_the_broker_reads_it(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("dataset: no\nsource: {range: {start: 0, stop: 0o17}}\n"
                    "batch: {size: 010, last: 'true'}\nepochs: 8e-2\n"
                    "seed: 1_000\nprefetch: 12:30\nhold: -3\nmap: ~\n")
    assert penstock.Dataset.from_file(path).to_dict() == {
        "dataset": "no", "source": {"range": {"start": 0, "stop": "0o17"}},
        "batch": {"size": 10.0, "last": "true"}, "epochs": 0.08,
        "seed": "1_000", "prefetch": "12:30", "hold": -3, "map": None}


@pytest.mark.parametrize("text,message", [
    ("", "found nothing"),
    ("- a\n", r"found \['a'\]"),
    ("dataset: d\ndataset: e\n", r"spec.yaml:2:1: 'dataset' is given twice"),
    ("dataset: &d d\n", r"spec.yaml:1:10: anchors"),
    ("dataset: !!int 3\n", r"spec.yaml:1:10: tags"),
    ("dataset: d\n---\nsource: e\n", r"spec.yaml:2:1: a second document"),
    ("dataset: [d\n", r"spec.yaml:2:1: "),
    ("[a]: b\n", r"spec.yaml:1:1: a key must be a name"),
])
def test_a_spec_file_that_is_none(tmp_path, text, message):
    (tmp_path / "spec.yaml").write_text(text)
    with pytest.raises(penstock.InvalidArgument, match=message):
        penstock.Dataset.from_file(tmp_path / "spec.yaml")


def test_a_source_that_is_none_is_left_to_the_broker(tmp_path, attach):
    (tmp_path / "spec.yaml").write_text("dataset: d\nsource: x\nbatch: {size: 1}\n")
    with pytest.raises(penstock.InvalidArgument, match="source"):
        attach(penstock.Dataset.from_file(tmp_path / "spec.yaml"))


def test_dtypes_of_numpy(attach):
    for dtype in (np.float32, np.dtype("float32"), "float32", np.dtype(">f4")):
        features = {"x": penstock.TensorSpec((2,), dtype)}
        for dataset in (penstock.Dataset.synthetic(2, features),
                        penstock.Dataset.fixed_length_records("r", features),
                        penstock.Dataset.stream(features)):
            (source,) = dataset.to_dict()["source"].values()
            assert source["features"] == {"x": {"dtype": "float32", "shape": [2]}}
    assert penstock.cast(np.float16) == {"cast": {"dtype": "float16"}}
    swapped = np.array([1, 2], ">i4")
    reader = attach(penstock.Dataset.tensors({"x": swapped}).batch(2))
    assert reader.next()["x"].tolist() == [1, 2]
    with pytest.raises(TypeError, match="wanted a dtype, got 3.5"):
        penstock.cast(3.5)
    with pytest.raises(TypeError, match="feature 'x': wanted a penstock.TensorSpec"):
        penstock.Dataset.synthetic(2, {"x": "float32"})


PENSTOCK = os.path.join(os.path.dirname(sys.executable), "penstock")

# Functions whose parameters are not the keys: what is there instead.
OF_ITS_OWN = {
    "range": {"start": inspect.Parameter.empty, "stop": None, "step": 1},  # Python's
    "crop": {"how": inspect.Parameter.empty, "size": inspect.Parameter.empty,
             "feature": None, "mask": None},
    "shuffle": {"seed": 0, "each_epoch": None},
}


def test_the_functions_have_the_keys_of_the_declarations():
    declared = json.loads(subprocess.run([PENSTOCK, "help", "spec", "--json"],
                                         stdout=subprocess.PIPE, check=True).stdout)
    assert {"source", "map", "crop"} <= set(declared)
    for of, kinds in declared.items():
        for name, kind in kinds.items():
            function = getattr(penstock if of in ("map", "crop", "masks")
                               else penstock.Dataset,
                               name)
            wanted = OF_ITS_OWN.get(name) or {
                key: inspect.Parameter.empty if each["required"] else None
                for key, each in kind["keys"].items()}
            given = {key: parameter.default for key, parameter
                     in inspect.signature(function).parameters.items()
                     if key not in ("self", "name")}
            assert given == wanted, name
            # A default that its docstring tells: ``horizontal`` (0.5).
            for key, told in re.findall(r"``(\w+)``\s+\(([\d.]+)\)",
                                        inspect.getdoc(function)):
                assert (float(told)
                        == ast.literal_eval(kind["keys"][key]["default"])), (name, key)
    sources = {name for name, each in vars(penstock.Dataset).items()
               if isinstance(each, classmethod) and not name.startswith("_")}
    assert sources - {"from_file"} == set(declared["source"])
