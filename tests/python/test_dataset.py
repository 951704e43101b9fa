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


@pytest.mark.parametrize("select", [
    lambda d: d.take(2), lambda d: d.skip(2), lambda d: d.shard(2, 0),
    lambda d: d.interleave(), lambda d: d.filter("value", min=3), lambda d: d.sample(4),
    lambda d: d.exclude("broken.txt"), lambda d: d.balance("value"), lambda d: d.times(2),
    lambda d: d.split("a", {"a": 0.5, "b": 0.5}), lambda d: d.fold(0)])
def test_records_are_not_selected_after_batch(select):
    with pytest.raises(penstock.InvalidArgument,
                       match=r"^\w+ after batch: .* call it before batch$"):
        select(penstock.Dataset.range(20).batch(4).prefetch(1))
    # A part of a mix says its own batch, and the mix has none yet.
    part = penstock.Dataset.range(20).batch(4)
    assert "batch" in penstock.Dataset.mix([part, part]).to_dict()


@pytest.mark.parametrize("before", ["shuffle", "repeat"])
@pytest.mark.parametrize("select", [
    lambda d: d.take(2), lambda d: d.skip(2), lambda d: d.shard(2, 0),
    lambda d: d.interleave()])
def test_what_selects_by_position_comes_before_shuffle_and_repeat(before, select):
    dataset = getattr(penstock.Dataset.range(20), before)(2)
    with pytest.raises(penstock.InvalidArgument,
                       match=rf"^\w+ after {before}: .* call it before {before};"):
        select(dataset)
    # These have the same records before and after.
    assert dataset.filter("value", min=3).split("a", {"a": 0.5, "b": 0.5}).times(2)


@pytest.mark.parametrize("step", [
    lambda d, n: d.batch(n), lambda d, n: d.shuffle(n), lambda d, n: d.repeat(n),
    lambda d, n: d.cache(memory=n), lambda d, n: d.snapshot(str(n))])
def test_a_second_call_is_an_error_and_not_a_change(step, tmp_path):
    once = step(penstock.Dataset.range(20), 2)
    with pytest.raises(penstock.InvalidArgument,
                       match="is called a second time and would replace the first: "):
        step(once.prefetch(2), 3)
    # The way to change it: what a spec says is no call.
    wanted = step(penstock.Dataset.range(20), 3).to_dict()
    assert step(penstock.Dataset(once.to_dict()), 3).to_dict() == wanted
    spec = tmp_path / "spec.yaml"
    spec.write_text(once.to_yaml())
    if "snapshot" not in wanted:
        assert step(penstock.Dataset.from_file(spec), 3).to_dict() == wanted
    assert penstock.Dataset.from_file(spec).take(5).to_dict()["select"] == [{"take": 5}]


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
               .hold(3).steps_per_epoch(2).on_error("skip").shard_policy("data"))
    reader = attach(dataset)
    assert reader.epoch_count is None
    assert reader.steps_per_epoch == 2
    assert reader.stats()["hold_max"] == 3


def test_rows_that_are_kept_are_the_same(attach, tmp_path):
    plain = penstock.Dataset.range(40).named("plain").shuffle(3).batch(8).repeat(2)
    wanted = [batch["value"].tolist() for batch in attach(plain)]
    kept = plain.named("kept").cache(memory="1M", at=0)
    assert [batch["value"].tolist() for batch in attach(kept)] == wanted
    assert plain.snapshot(tmp_path, zstd=3).to_dict()["snapshot"] == {
        "path": str(tmp_path), "zstd": 3}
    with pytest.raises(penstock.InvalidArgument, match="cache: wanted `memory` or `disk`"):
        attach(plain.named("both").cache(memory="1M", disk=1))


def test_a_spec_file_is_read_as_the_broker_reads_it(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("dataset: no\nsource: {range: {start: 0, stop: 0o17}}\n"
                    "batch: {size: 010, last: 'true'}\nepochs: 8e-2\n"
                    "seed: 1_000\nprefetch: 12:30\nhold: -3\nmap: ~\n")
    assert penstock.Dataset.from_file(path).to_dict() == {
        "dataset": "no", "source": {"range": {"start": 0, "stop": "0o17"}},
        "batch": {"size": 10.0, "last": "true"}, "epochs": 0.08,
        "seed": "1_000", "prefetch": "12:30", "hold": -3, "map": None}


def test_relative_paths_of_a_spec_file_begin_there_and_labels_are_none(tmp_path):
    path = tmp_path / "spec.yaml"
    path.write_text("source: {image_folder: {path: a, labels: none, masks: {path: b}}}\n")
    assert penstock.Dataset.from_file(path).to_dict()["source"]["image_folder"] == {
        "path": f"{tmp_path}/a", "labels": "none", "masks": {"path": f"{tmp_path}/b"}}
    path.write_text("source: {idx: {images: a, labels: b}}\n")
    assert penstock.Dataset.from_file(path).to_dict()["source"]["idx"] == {
        "images": f"{tmp_path}/a", "labels": f"{tmp_path}/b"}


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
    "mix": {"parts": inspect.Parameter.empty, "weights": None, "when_out": None,
            "schedule": None, "block": None},
    "zip": {"parts": inspect.Parameter.empty, "prefixes": None, "by": None,
            "on_missing": None},
    "range": {"start": inspect.Parameter.empty, "stop": None, "step": 1},  # Python's
    "crop": {"how": inspect.Parameter.empty, "size": inspect.Parameter.empty,
             "feature": None, "mask": None, "boxes": None, "interpolation": None},
    "megatron": {"prefix": inspect.Parameter.empty,  # or the blend
                 "sequence_length": None,
                 **dict.fromkeys(("samples", "split", "use", "order", "seed", "cache",
                                  "features", "vocab_size", "gpt_config", "io"))},
    "shuffle": {"seed": 0, "each_epoch": None, "window_files": None},
    # `from` and `with` are words of Python's.
    "pack": {"length": inspect.Parameter.empty, "feature": None, "by": None,
             "method": None, "longer": None, "window": None, "across_parts": None,
             "documents": None, "pad": None, "with_": None, "mask_first": None},
    "normalize": {"mean": None, "std": None, "dtype": None, "layout": None,
                  "feature": None, "from_": None},
    "convert_boxes": {"from_": inspect.Parameter.empty, "to": inspect.Parameter.empty,
                      "feature": None},
    "vocabulary": {"from_": inspect.Parameter.empty, "feature": None,
                   "min_count": None, "max_size": None},
}


def test_the_functions_have_the_keys_of_the_declarations():
    declared = json.loads(subprocess.run([PENSTOCK, "help", "spec", "--json"],
                                         stdout=subprocess.PIPE, check=True).stdout)
    assert {"source", "map", "crop"} <= set(declared)
    for of, kinds in declared.items():
        if of in ("select", "parts", "schedule"):
            continue  # methods and arguments of their own, tested below
        for name, kind in kinds.items():
            free = of in ("map", "crop", "masks", "vocabulary", "buckets", "pack",
                           "gpt_config", "chat")
            function = getattr(penstock if free else penstock.Dataset, name)
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
                default = kind["keys"][key]["default"]
                if default:  # else in words
                    value = ast.literal_eval(default)
                    one_or_all = value[0] if isinstance(value, list) else value
                    assert float(told) == one_or_all, (name, key)
    sources = {name for name, each in vars(penstock.Dataset).items()
               if isinstance(each, classmethod) and not name.startswith("_")}
    assert sources - {"from_file"} == set(declared["source"])


# ---- which records a pass has ------------------------------------------------


def values(reader):
    return [int(v) for batch in reader for v in batch["value"]]


@pytest.mark.parametrize(("select", "wanted"), [
    (lambda d: d.skip(3).take(4), [3, 4, 5, 6]),
    (lambda d: d.shard(4, 1), [1, 5, 9]),
    (lambda d: d.take(3).times(2), [0, 1, 2, 0, 1, 2]),
    (lambda d: penstock.Dataset.concat([d.take(2), d.skip(8)]), [0, 1, 8, 9]),
    (lambda d: penstock.Dataset.concat([d.take(2), d.skip(8)]).skip(1).take(2),
     [1, 8]),
    (lambda d: penstock.Dataset.mix([d.take(4), d.skip(8)], [2, 1]),
     [0, 1, 8, 2, 3, 9]),
])
def test_which_records_a_pass_has(attach, select, wanted):
    dataset = select(penstock.Dataset.range(10)).batch(4)
    assert values(attach(dataset)) == wanted


def test_parts_of_a_split_have_all_records(attach):
    of = {"train": 0.8, "validation": 0.2}
    parts = [values(attach(penstock.Dataset.range(1000).split(part, of, seed=7)
                           .batch(100), job=part)) for part in of]
    assert [len(part) for part in parts] == [800, 200]
    assert sorted(parts[0] + parts[1]) == list(range(1000))
    folds = [values(attach(penstock.Dataset.range(100).fold(i, 4, "validation")
                           .batch(100), job=f"fold {i}")) for i in range(4)]
    assert sorted(sum(folds, [])) == list(range(100))


def test_records_are_selected_by_columns(attach, tmp_path):
    for file in ("a", "b", "c"):
        (tmp_path / file).write_text("".join(f"{file}{i}\n" for i in range(4)))
    lines = penstock.Dataset.text_lines([tmp_path / file for file in "abc"], 2)

    def texts(dataset, job):
        return [bytes(text).decode() for batch in attach(dataset.batch(4), job=job)
                for text in batch["text"]]
    assert texts(lines.filter("file", matches="*/b"), "b") == ["b0", "b1", "b2", "b3"]
    assert texts(lines.shard(2, 1, by="file").take(1), "shard") == ["b0"]
    numbers = penstock.Dataset.range(10)
    assert values(attach(numbers.filter("value", include=[3, 5]).batch(9),
                         job="in")) == [3, 5]
    assert values(attach(numbers.filter("value", min=7, exclude=[8]).batch(9),
                         job="min")) == [7, 9]
    images = np.zeros((6, 2, 2), np.uint8)
    labels = np.array([0, 0, 0, 0, 1, 1], np.uint8)
    np.save(tmp_path / "images.npy", images)
    np.save(tmp_path / "labels.npy", labels)
    data = penstock.Dataset.npy({"image": tmp_path / "images.npy",
                                 "label": tmp_path / "labels.npy"})
    batches = attach(data.balance("label").batch(4), job="balance")
    assert sorted(next(iter(batches))["label"].tolist()) == [0, 0, 1, 1]


def mixture():
    ranges = [penstock.Dataset.range(100), penstock.Dataset.range(1000, 1040),
              penstock.Dataset.range(2000, 2500)]
    inner = penstock.Dataset.concat([ranges[1], ranges[2].take(30)])
    return (penstock.Dataset.mix([ranges[0], inner], [0.75, 0.25],
                                 when_out="repeat",
                                 schedule={90: [1, 1], 150: [0.3, 0.7]})
            .shuffle(seed=5).batch(8).repeat(3))


def records(folder):
    """Four files of 8-byte records, numbered through."""
    numbers = np.arange(100)
    files = []
    for name, part in zip("abcd", np.split(numbers, [13, 14, 60])):
        files.append(folder / name)
        part.tofile(files[-1])
    return penstock.Dataset.fixed_length_records(
        files, {"value": {"dtype": "int64", "shape": []}})


@pytest.mark.parametrize("at", [1, 7, 20])
@pytest.mark.parametrize("dataset", [
    lambda folder: mixture(),
    lambda folder: penstock.Dataset.mix(
        [penstock.Dataset.range(50), penstock.Dataset.range(100, 120)], [2, 1],
        when_out="repeat", block=8).shuffle(seed=5).batch(8).repeat(3),
    lambda folder: records(folder).shuffle(seed=2, window_files=2).batch(8).repeat(3),
    lambda folder: records(folder).interleave(3, 4).batch(8).repeat(3),
    lambda folder: penstock.Dataset.range(100).sample(90, by="value", weights={7: 20})
    .shuffle(seed=3).batch(8).repeat(3),
], ids=["mix", "blocks", "windows", "interleave", "sample"])
def test_an_order_resumes_at_any_step_with_any_number_of_ranks(
        attach, attach_all, tmp_path, dataset, at):
    data = dataset(tmp_path)

    def sequence(readers):
        return [int(v) for step in zip(*readers) for batch in step
                for v in batch["value"]]

    whole = sequence([attach(data, job="whole")])
    reader = attach(data, job="first")
    first = []
    for batch in reader:
        first += [int(v) for v in batch["value"]]
        if len(first) == 8 * at:
            break
    state = reader.state_dict()
    reader.close()
    assert first + sequence(attach_all(data, 3, "rest", state=state)) == whole


def test_each_batch_of_a_mix_of_blocks_is_of_one_part(attach):
    parts = [penstock.Dataset.range(50), penstock.Dataset.range(100, 120)]
    reader = attach(penstock.Dataset.mix(parts, [2, 1], when_out="drop", block=8)
                    .shuffle(seed=5).batch(8).repeat(2))
    batches = [batch["value"].tolist() for batch in reader]
    of_second = [all(v >= 100 for v in batch) for batch in batches]
    assert of_second == [any(v >= 100 for v in batch) for batch in batches]
    assert of_second == [False, False, True, False, False, True, False, False] * 2
    # Two of 50 rows fill no block, and four of 20.
    epochs = [sum(batches[:8], []), sum(batches[8:], [])]
    assert [len(set(epoch)) for epoch in epochs] == [64, 64]
    assert set(epochs[0]) != set(epochs[1])


def test_windows_of_files_are_shuffled_one_after_the_other(attach, tmp_path):
    rows = values(attach(records(tmp_path).shuffle(seed=1, window_files=1).batch(10)
                         .repeat(2)))
    ends = [13, 14, 60, 100]
    orders = []
    for epoch in (rows[:100], rows[100:]):
        assert sorted(epoch) == list(range(100))
        files = [next(i for i, end in enumerate(ends) if row < end) for row in epoch]
        order = [file for i, file in enumerate(files) if i == 0 or file != files[i - 1]]
        assert sorted(order) == [0, 1, 2, 3]
        orders.append(order)
        of_last = [row for row in epoch if row >= 60]
        assert of_last != sorted(of_last)
    assert rows[:100] != rows[100:]


def test_a_sample_is_weighted_and_drawn_anew_in_each_epoch(attach, tmp_path):
    arrays = {"x": np.zeros((4, 8)), "value": np.arange(4),
              "weight": np.array([0, 0.5, 1.5, 2])}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    data = penstock.Dataset.npy({name: tmp_path / f"{name}.npy" for name in arrays})
    for sampled, job in ((data.sample(4000, weight="weight", seed=4), "weight"),
                         (data.sample(4000, by="value", seed=4,
                                      weights={0: 0, 1: 0.5, 2: 1.5, 3: 2}), "by")):
        rows = values(attach(sampled.batch(1000).repeat(2), job=job))
        assert rows[:4000] != rows[4000:]
        shares = np.bincount(rows, minlength=4) / len(rows)
        assert shares[0] == 0
        assert np.abs(shares - [0, 0.125, 0.375, 0.5]).max() < 0.035  # 6 sigma


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_zip_has_a_record_of_each_part(attach, tmp_path, shuffle):
    x = np.arange(60, dtype=np.float32).reshape(20, 3)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "y.npy", np.stack([x, -x], 1))
    (tmp_path / "lines").write_text("".join(f"line {i}\n" * (i % 2 + 1)
                                            for i in range(20)))
    arrays = penstock.Dataset.npy({"x": tmp_path / "x.npy", "y": tmp_path / "y.npy"})
    data = penstock.Dataset.zip([
        penstock.Dataset.range(100),
        arrays.skip(2),
        penstock.Dataset.concat([penstock.Dataset.text_lines(tmp_path / "lines", 8)
                                 .skip(3), penstock.Dataset.text_lines(
                                     tmp_path / "lines", 8)]),
        penstock.Dataset.zip([arrays.take(19), penstock.Dataset.range(5, 50)],
                             ["inner.", None])],
        [None, None, None, "outer."])
    lines = (tmp_path / "lines").read_text().split("\n")[3:]
    if shuffle:
        data = data.shuffle(seed=3)
    with pytest.warns(UserWarning, match="the zip ends with the shortest part"):
        reader = attach(data.batch(4))
    assert reader.sample_count == 18
    seen = []
    for batch in reader:
        for row in range(len(batch["value"])):
            i = int(batch["value"][row])
            seen.append(i)
            assert batch["x"][row].tolist() == x[i + 2].tolist()
            assert batch["y"][row].tolist() == [x[i + 2].tolist(), (-x[i + 2]).tolist()]
            text = bytes(batch["text"][row])[:batch["bytes"][row]].decode()
            assert text == lines[i]
            assert batch["outer.inner.x"][row].tolist() == x[i].tolist()
            assert batch["outer.inner.y"][row, 1].tolist() == (-x[i]).tolist()
            assert batch["outer.value"][row] == i + 5
    assert sorted(seen) == list(range(18)) and (seen != sorted(seen)) == shuffle


def test_a_state_belongs_to_its_selection(attach):
    folds = [penstock.Dataset.range(100).fold(i, part="validation").batch(5)
             for i in range(2)]
    reader = attach(folds[0], job="first")
    next(iter(reader))
    state = reader.state_dict()
    with pytest.raises(penstock.Error, match="selection: the records that"):
        attach(folds[1], job="second", state=state)
    assert next(iter(attach(folds[0], job="third", state=state))) is not None


@pytest.mark.parametrize(("dataset", "message"), [
    (lambda: penstock.Dataset.range(5).skip(5),
     r"select\[0\].skip: nothing is left of 5 records"),
    (lambda: penstock.Dataset.concat(
        [penstock.Dataset.range(5),
         penstock.Dataset.tensors({"value": {"dtype": "int32", "values": [1]}})]),
     "parts need the same features"),
    (lambda: penstock.Dataset.range(5).filter("size", min=1),
     "has no column 'size'; it has value"),
    (lambda: penstock.Dataset.range(5).split("test", {"train": 0.5}),
     "'test' is none of the parts"),
    (lambda: penstock.Dataset.mix([penstock.Dataset.range(5)], [0]),
     "all weights are 0"),
    (lambda: penstock.Dataset.mix([penstock.Dataset.range(5)], block=8),
     r"parts\[0\]: has 5 records, less than a block, 8"),
    (lambda: penstock.Dataset.mix([penstock.Dataset.range(50)], block=8,
                                  schedule={12: [2]}),
     "row 12: wanted a multiple of the block, 8"),
    (lambda: penstock.Dataset.zip([penstock.Dataset.range(5)] * 2),
     r"parts\[1\]: has a feature 'value', as a part before it: give it a prefix"),
    (lambda: penstock.Dataset.range(5).shuffle(1, window_files=2),
     "shuffle.window_files: this source has no column 'file'; it has value"),
    (lambda: penstock.Dataset.range(5).sample(by="value", weights={9: 1}),
     r"select\[0\].sample.weights: no record has '9' in column 'value'"),
    (lambda: penstock.Dataset.range(5).sample(weights={3: 1}), "wanted `by` as well"),
    (lambda: penstock.Dataset.range(5).interleave(),
     r"select\[0\].interleave: this source has no column 'file'"),
])
def test_selections_that_cannot_be(attach, dataset, message):
    with pytest.raises(penstock.Error, match=message):
        attach(dataset().batch(2))


def test_a_part_has_a_source_and_a_selection_alone():
    with pytest.raises(ValueError, match="has no shuffle: say it of the whole"):
        penstock.Dataset.concat([penstock.Dataset.range(5).shuffle(1)])
    with pytest.raises(ValueError, match="1 weights for 2 parts"):
        penstock.Dataset.mix([penstock.Dataset.range(5)] * 2, [1])
