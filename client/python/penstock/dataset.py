"""A dataset spec written in Python: the content of a YAML file as a call chain.

    dataset = (penstock.Dataset.image_folder("/data/imagenet/train")
               .shuffle(seed=42)
               .map(penstock.decode_image(size=224, crop=penstock.random_resized()),
                    penstock.flip(horizontal=0.5),
                    penstock.normalize(mean=..., std=..., dtype="float16"))
               .batch(2048)
               .repeat(90))

Each step returns a new Dataset. Nothing is read or checked here: the broker
checks a spec at the attach (``penstock check`` does so at any time), and its errors
name the key (``spec: map[0].cast.dtype: ...``). None stands for the spec's default,
below in parentheses; common/README.md documents the format. ``feature`` names the
feature that an operation changes (``image``, or the only one), or several, which
have the same random numbers.
"""

from __future__ import annotations

import json
import os
import re
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Union

import numpy as np

from penstock.errors import InvalidArgument

Path = Union[str, "os.PathLike[str]"]
# A path, glob or brace pattern; several; or {"list": a file with one path a line}.
Files = Union[Path, Sequence[Path], Mapping[str, Path]]
Size = Union[int, Sequence[int]]
PerChannel = Union[float, Sequence[float]]
# One feature, or several: with the same random numbers.
Names = Union[str, Sequence[str]]


def _given(**values: Any) -> Dict[str, Any]:
    """The values that are not None, as plain JSON types."""
    return {key: _plain(value) for key, value in values.items()
            if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, (os.PathLike, bytes)):
        return os.fsdecode(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if hasattr(value, "tolist"):  # NumPy's arrays and scalars
        return value.tolist()
    return [_plain(each) for each in value]


def dtype_name(dtype: Any) -> str:
    """The name ("float32") of a dtype of NumPy, PyTorch or TensorFlow; text as is."""
    if isinstance(dtype, str):
        return dtype
    if type(dtype).__module__ == "torch":
        return str(dtype).rpartition(".")[2]
    if type(dtype).__module__.startswith("tensorflow."):
        return str(dtype.name)
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        raise TypeError(f"wanted a dtype, got {dtype!r}") from None


def _optional_dtype(dtype: Any) -> Optional[str]:
    return None if dtype is None else dtype_name(dtype)


def features_of(features: Mapping[str, Any]) -> Dict[str, Dict[str, Any]]:
    """Converts {name: TensorSpec(shape, dtype)} to the spec's {name: {"dtype",
    "shape", ...}}, which is accepted too."""
    if not isinstance(features, Mapping):
        raise TypeError("features: wanted a mapping of names, such as {'x': "
                        f"penstock.TensorSpec((2,), 'float32')}}, got {features!r}")
    plain = {}
    for name, spec in features.items():
        if not isinstance(name, str):
            raise TypeError(f"features: wanted names, got {name!r}")
        if not isinstance(spec, Mapping):
            try:
                shape, dtype = spec
            except (TypeError, ValueError):
                raise TypeError(f"feature {name!r}: wanted a penstock.TensorSpec or "
                                f"{{'dtype': ..., 'shape': [...]}}, got {spec!r}"
                                ) from None
            spec = {"dtype": dtype, "shape": shape}
        plain[name] = dict(spec)
        if "dtype" in spec:
            plain[name]["dtype"] = dtype_name(spec["dtype"])
        if "shape" in spec:
            plain[name]["shape"] = [int(n) for n in spec["shape"]]
    return plain


class Operation(Dict[str, Any]):
    """One entry of a spec's ``map``; made by ``decode_image``, ``crop``, ``resize``,
    ``flip``, ``normalize``, ``cast``, ``python`` and ``plugin``."""


def _operation(name: str, **values: Any) -> Operation:
    return Operation({name: _given(**values)})


def random_resized(scale: Optional[Sequence[float]] = None,
                   ratio: Optional[Sequence[float]] = None) -> Dict[str, Any]:
    """A crop of random area (``scale`` [0.08, 1] of the picture's) and aspect
    ``ratio`` ([3/4, 4/3]), drawn as by torchvision's RandomResizedCrop."""
    return {"random_resized": _given(scale=scale, ratio=ratio)}


def center(fraction: Optional[float] = None) -> Dict[str, Any]:
    """The largest centred crop of the target's aspect ratio; ``fraction`` (1)
    scales its sides."""
    return {"center": _given(fraction=fraction)}


def masks(path: Path, suffix: Optional[str] = None,
          on_missing: Optional[str] = None) -> Dict[str, Any]:
    """``masks`` of ``Dataset.image_folder``: a folder whose files have the paths of the
    pictures, with ``suffix`` ("_mask.png"; ".png" if not given) for the extension;
    it may be the folder of the pictures. ``on_missing``: "error", or "skip" what has
    no partner."""
    return _given(path=_absolute(path), suffix=suffix, on_missing=on_missing)


def decode_image(size: Size, crop: Union[str, Mapping[str, Any], None] = None,
                 channels: Optional[str] = None, exact: Optional[bool] = None,
                 feature: Optional[Names] = None, *,
                 orientation: Optional[str] = None, mask: Optional[Names] = None,
                 mask_dtype: Any = None) -> Operation:
    """JPEG, PNG, WebP or TIFF -> uint8 [height, width, channels], antialiased
    bilinear; transparency is dropped.

    ``size``: [height, width] or one number; ``crop``: "center",
    "random_resized", ``center(...)`` or ``random_resized(...)``; ``channels``:
    "rgb" or "gray"; ``exact``: bit-exact with Pillow, half as fast;
    ``orientation``: "ignore" (as it is stored) or "apply" (turned upright by its
    EXIF orientation). ``mask``: features that are masks of the picture: cropped
    alike, resized by the nearest pixel, [height, width] with the values of Pillow's
    array (gray, or the index into a palette), ``mask_dtype`` "uint8" or "int32"."""
    return _operation("decode_image", size=size, crop=crop, channels=channels,
                      exact=exact, feature=feature, orientation=orientation,
                      mask=mask, mask_dtype=_optional_dtype(mask_dtype))


def crop(how: Union[str, Mapping[str, Any]], size: Size,
         feature: Optional[Names] = None, *,
         mask: Optional[Names] = None) -> Operation:
    """uint8 picture -> uint8 of ``size`` (as in ``decode_image``); ``how``: as
    ``crop`` of ``decode_image``; ``mask``: masks of it, of any dtype, cropped alike
    and resized by the nearest pixel."""
    where = {how: {}} if isinstance(how, str) else dict(how)
    return _operation("crop", **where, size=size, feature=feature, mask=mask)


def resize(size: Size, feature: Optional[Names] = None, *,
           mask: Optional[Names] = None) -> Operation:
    """uint8 picture -> uint8 of ``size`` (as in ``decode_image``), antialiased
    bilinear; ``mask``: masks of it, of any dtype, by the nearest pixel."""
    return _operation("resize", size=size, feature=feature, mask=mask)


def flip(horizontal: Optional[float] = None,
         feature: Optional[Names] = None, *,
         mask: Optional[Names] = None) -> Operation:
    """Mirrors a picture, and its masks with it, left to right with probability
    ``horizontal`` (0.5)."""
    return _operation("flip", horizontal=horizontal, feature=feature, mask=mask)


def normalize(mean: PerChannel, std: PerChannel, dtype: Optional[str] = None,
              layout: Optional[str] = None,
              feature: Optional[Names] = None) -> Operation:
    """uint8 picture -> (value / 255 - mean) / std; ``mean``, ``std``: one number or
    one per channel; ``dtype``: "float32", "float16" or "bfloat16"; ``layout``:
    "hwc" or "chw"."""
    return _operation("normalize", mean=mean, std=std, dtype=_optional_dtype(dtype),
                      layout=layout, feature=feature)


def cast(dtype: str, layout: Optional[str] = None,
         feature: Optional[Names] = None) -> Operation:
    """Converts to ``dtype``: rounds to nearest even and saturates; to "bool", all
    but 0 is true. ``layout``: "hwc" or "chw"."""
    return _operation("cast", dtype=dtype_name(dtype), layout=layout,
                      feature=feature)


def python(function: Union[str, Callable[..., Mapping[str, Any]]],
           features: Optional[Mapping[str, Any]] = None) -> Operation:
    """A Python function of one row, called in processes of the broker.

    ``function``: "package.module:function", or the function itself; the broker
    imports it from its ``python_path`` (ValueError: it cannot be imported).

    The function is called with a dict of feature -> NumPy array: one row, no batch
    dimension, valid during this call only. A feature that no step has decoded is
    the file's bytes, uint8 [n]. If it has a parameter ``rng``, it also gets a
    ``numpy.random.Generator`` that depends on the dataset's seed, the epoch and
    the sample alone. It returns a mapping with the arrays of ``features`` (name ->
    ``TensorSpec`` or {"dtype", "shape"}; None: the features it was given). An
    exception becomes the sample's error, with its traceback."""
    if not isinstance(function, str):
        function = _importable(function)
    return _operation("python", function=function,
                      features=None if features is None
                      else features_of(features))


def plugin(library: str, function: str,
           features: Optional[Mapping[str, Any]] = None) -> Operation:
    """A C function of one row: ``function`` of the shared library ``library``, a file
    in the broker's ``plugin_dir`` (penstock_plugin.h). ``features``: as in
    ``python``."""
    return _operation("plugin", library=library, function=function,
                      features=None if features is None
                      else features_of(features))


def _importable(function: Any) -> str:
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", "")
    if module in (None, "__main__") or "<" in name or not name:
        raise ValueError(
            f"{function!r} cannot be imported by another process: put it at the "
            "top of a module that the broker's python_path has")
    return f"{module}:{name}"


class Dataset:
    """An immutable dataset spec. The class methods are its sources: ``name`` is what
    the broker calls the dataset, and relative paths start at the working directory.
    ``io``: how files are read."""

    def __init__(self, spec: Mapping[str, Any]):
        """``spec``: the content of a spec file, as ``yaml.safe_load`` reads it."""
        self._spec = dict(spec)

    def _with(self, **values: Any) -> "Dataset":
        return Dataset({**self._spec, **_given(**values)})

    @classmethod
    def _of(cls, source: str, value: Any, name: Optional[str]) -> "Dataset":
        return cls({"dataset": name or source.replace("_", "-"),
                    "source": {source: _plain(value)}})

    # ---- sources

    @classmethod
    def image_folder(cls, path: Path, *, labels: Optional[str] = None,
                     masks: Optional[Mapping[str, Any]] = None,
                     io: Optional[str] = None,
                     name: Optional[str] = None) -> "Dataset":
        """Pictures (JPEG, PNG, WebP, TIFF) in one sub-folder per class, also nested.
        Features: ``image`` (encoded), ``label`` int64 []: the index of the class
        folder in byte order. ``labels``: "none" takes all pictures in the folder, at
        any depth, and gives no label. ``masks``: ``penstock.masks(...)``, which adds
        ``mask`` (encoded)."""
        return cls._of("image_folder", _given(
            path=_absolute(path), labels=labels, masks=masks, io=io), name)

    @classmethod
    def image_list(cls, file: Path, columns: Mapping[str, Any], *,
                   folder: Optional[Path] = None, delimiter: Optional[str] = None,
                   header: Optional[bool] = None, longer: Optional[str] = None,
                   on_missing: Optional[str] = None, io: Optional[str] = None,
                   name: Optional[str] = None) -> "Dataset":
        """Pictures that a file of comma-separated values names, a sample per row, in
        its order. ``columns``: {name: {"encoded": True}} of the path of a picture,
        {name: {"classes": True}} of a class's name, which becomes its number in byte
        order of all names (or in a list: {"classes": ["cat", "dog"]}), and numbers
        and text as in ``csv``, with "column". Paths are below ``folder``; if None,
        beside the file. ``on_missing``: "error", or "skip" rows whose picture is not
        there."""
        return cls._of("image_list", _given(
            file=_absolute(file), columns=features_of(columns),
            folder=None if folder is None else _absolute(folder),
            delimiter="tab" if delimiter == "\t" else delimiter, header=header,
            longer=longer, on_missing=on_missing, io=io), name)

    @classmethod
    def idx(cls, images: Path, labels: Optional[Path] = None, *,
            io: Optional[str] = None, name: Optional[str] = None) -> "Dataset":
        """Files in MNIST's format, plain or gzip. Features: ``image``, and
        ``label`` int64 [] if ``labels`` is given."""
        return cls._of("idx", _given(
            images=_absolute(images),
            labels=None if labels is None else _absolute(labels), io=io), name)

    @classmethod
    def fixed_length_records(
            cls, files: Files,
            features: Mapping[str, Mapping[str, Any]], *,
            header_bytes: Optional[int] = None,
            footer_bytes: Optional[int] = None, io: Optional[str] = None,
            name: Optional[str] = None) -> "Dataset":
        """Records of one or several files. ``features``: {name: {"dtype": ...,
        "shape": [...]}} in the order of a record, little-endian, without gaps;
        ``header_bytes``, ``footer_bytes``: skipped in each file."""
        return cls._of("fixed_length_records", _given(
            files=_absolute_files(files), features=features_of(features),
            header_bytes=header_bytes, footer_bytes=footer_bytes, io=io), name)

    @classmethod
    def text_lines(cls, files: Files, max_bytes: int, *,
                   longer: Optional[str] = None,
                   name: Optional[str] = None) -> "Dataset":
        """Lines of one or several text files. Features: ``text`` uint8 [max_bytes],
        filled with zeros, and ``bytes`` int64 []: how many are the line's.
        ``longer``: "fail" or "cut" a line of more."""
        return cls._of("text_lines", _given(files=_absolute_files(files),
                                            max_bytes=max_bytes, longer=longer), name)

    @classmethod
    def json_lines(cls, files: Files,
                   fields: Mapping[str, Any], *, longer: Optional[str] = None,
                   name: Optional[str] = None) -> "Dataset":
        """Values of JSON documents, one a line. ``fields``: {name: {"dtype": ...,
        "shape": [...]}} (or a ``TensorSpec``) for numbers, {name: {"max_bytes": ...}}
        for text, which becomes ``name`` uint8 [max_bytes], filled with zeros, and
        ``name_bytes`` int64 []. "pointer" tells where it is (RFC 6901: "/meta/0/x";
        "/name" if not given), "default" what it is where it is missing or null.
        ``longer``: "fail" or "cut" text of more than max_bytes."""
        return cls._of("json_lines", _given(
            files=_absolute_files(files), fields=features_of(fields), longer=longer),
            name)

    @classmethod
    def csv(cls, files: Files, columns: Mapping[str, Any], *,
            delimiter: Optional[str] = None, header: Optional[bool] = None,
            longer: Optional[str] = None, name: Optional[str] = None) -> "Dataset":
        """Columns of files of comma-separated values (RFC 4180). ``columns``: {name:
        {"dtype": ...}} for numbers, {name: {"max_bytes": ...}} for text, as in
        ``json_lines``. "column" is its name in the header (name if not given), or its
        number from 0 with ``header`` False; "default" what an empty value is.
        ``delimiter``: a character, or "tab"."""
        return cls._of("csv", _given(
            files=_absolute_files(files), columns=features_of(columns),
            delimiter="tab" if delimiter == "\t" else delimiter, header=header,
            longer=longer), name)

    @classmethod
    def tokens(cls, files: Files, sequence_length: int, *,
               dtype: Any = None, header_bytes: Optional[int] = None,
               stride: Optional[int] = None, targets: Optional[str] = None,
               output_dtype: Any = None, io: Optional[str] = None,
               name: Optional[str] = None) -> "Dataset":
        """Sequences of tokens from flat files: raw, or .npy with one dimension.
        Features: ``input`` [sequence_length] and ``target`` (the token after each),
        or only ``input`` with ``targets`` "none".

        ``dtype``: of the tokens in the files ("uint16", "uint32", "int32",
        "int64"); a .npy file says it itself, of others it is uint16 if None.
        ``header_bytes``: skipped in each file that is not .npy. ``stride``: tokens
        from the start of a sequence to that of the next (sequence_length if None).
        ``output_dtype``: "int64" or "int32". A sequence never crosses from a file to
        the next; the tokens after the last whole sequence are left out."""
        return cls._of("tokens", _given(
            files=_absolute_files(files), sequence_length=sequence_length,
            dtype=_optional_dtype(dtype), header_bytes=header_bytes, stride=stride,
            targets=targets, output_dtype=_optional_dtype(output_dtype), io=io),
            name)

    @classmethod
    def npy(cls, features: Mapping[str, Files], *,
            io: Optional[str] = None, name: Optional[str] = None) -> "Dataset":
        """Rows of arrays that ``numpy.save`` wrote, along their first axis.
        ``features``: {name: files, whose arrays follow one another}; all
        features have as many rows. The largest rows are read, others kept in memory
        while they have at most 64 MiB together."""
        return cls._of("npy", _given(
            features={key: _absolute_files(files) for key, files in features.items()},
            io=io), name)

    @classmethod
    def npz(cls, file: Path, features: Mapping[str, str], *,
            io: Optional[str] = None, name: Optional[str] = None) -> "Dataset":
        """Rows of the arrays in a file of ``numpy.savez`` (not
        ``numpy.savez_compressed``), along their first axis. ``features``: {name: the
        name of an array}; as in ``npy``."""
        return cls._of("npz", _given(file=_absolute(file), features=dict(features),
                                     io=io), name)

    @classmethod
    def tfrecord(cls, files: Files,
                 features: Optional[Mapping[str, Mapping[str, Any]]] = None, *,
                 io: Optional[str] = None,
                 name: Optional[str] = None) -> "Dataset":
        """TFRecord files of tf.train.Example. ``features``: {name: {"encoded": True}}
        of a picture, {"dtype": ..., "shape": [...], "default": ...} of numbers or raw
        bytes, {"max_bytes": ...} of text, which brings ``name_bytes`` int64 []; each
        with "key", its name in the record. Without them an error proposes
        them."""
        return cls._of("tfrecord", _given(
            files=_absolute_files(files),
            features=None if features is None else features_of(features), io=io),
            name)

    @classmethod
    def webdataset(cls, files: Files,
                   features: Optional[Mapping[str, Mapping[str, Any]]] = None, *,
                   on_missing: Optional[str] = None, io: Optional[str] = None,
                   name: Optional[str] = None) -> "Dataset":
        """Tar files whose members of one base name are a sample. ``features``: as in
        ``tfrecord``, with "member" for "key": its extension, or several by preference
        ("jpg;png"). ``on_missing``: "error", or "skip" samples that lack one."""
        return cls._of("webdataset", _given(
            files=_absolute_files(files),
            features=None if features is None else features_of(features),
            on_missing=on_missing, io=io), name)

    @classmethod
    def python(cls, dataset: Optional[str] = None, *,
               args: Optional[Mapping[str, Any]] = None,
               object: Optional[Path] = None,
               names: Union[str, Sequence[str], None] = None,
               max_bytes: Optional[int] = None,
               processes: Optional[int] = None,
               name: Optional[str] = None) -> "Dataset":
        """A map-style dataset: ``dataset`` is "package.module:factory" in the
        broker's python_path, called with ``args``, whose result has ``__len__`` and
        ``__getitem__``. Features are named by the keys, fields and indices of a
        sample (``image``, ``0``, ``1.boxes``); ``names``: of a tuple's items. A str
        has two: its UTF-8 bytes, uint8 [max_bytes], filled with zeros, and
        NAME_bytes int64 []. Processes of the broker make the samples: ``processes``
        (0: one per worker). ``object``: instead of ``dataset``, the file of a
        pickled one, as ``penstock.torch.DataLoader`` writes it for a private
        broker."""
        return cls._of("python", _given(
            dataset=dataset, args=args,
            object=None if object is None else _absolute(object), names=names,
            max_bytes=max_bytes, processes=processes), name)

    @classmethod
    def range(cls, start: int, stop: Optional[int] = None, step: int = 1, *,
              name: Optional[str] = None) -> "Dataset":
        """Feature ``value`` int64 []: the numbers of Python's range."""
        if stop is None:
            start, stop = 0, start
        return cls._of("range", {"start": start, "stop": stop, "step": step},
                       name)

    @classmethod
    def tensors(cls, features: Mapping[str, Any], *,
                repeat: Optional[int] = None,
                name: Optional[str] = None) -> "Dataset":
        """Small arrays or nested lists, [rows, *shape] each, held by the spec
        (64 KiB in all). NumPy arrays keep their dtype; lists become int64, bool
        or float32."""
        values = {
            key: ({"dtype": dtype_name(value.dtype), "values": value.tolist()}
                  if hasattr(value, "dtype") else value)
            for key, value in features.items()}
        return cls._of("tensors", _given(features=values, repeat=repeat), name)

    @classmethod
    def synthetic(cls, records: int, features: Mapping[str, Mapping[str, Any]],
                  *, cost_us: Optional[float] = None,
                  name: Optional[str] = None) -> "Dataset":
        """Generated records; ``cost_us``: microseconds of CPU time spent on each."""
        return cls._of("synthetic", _given(records=records,
                                           features=features_of(features),
                                           cost_us=cost_us), name)

    @classmethod
    def stream(cls, features: Mapping[str, Any], *,
               producers: Optional[int] = None,
               name: Optional[str] = None) -> "Dataset":
        """Rows that ``penstock.producer`` puts; ``features``: its
        ``element_spec``. Ends when ``producers`` (1) of them have finished, or all
        that were at work at once. Read once, in the order of the puts: no
        shuffle, repeat or seek."""
        return cls._of("stream", _given(features=features_of(features),
                                        producers=producers), name)

    @classmethod
    def from_file(cls, path: Path) -> "Dataset":
        """Reads a spec file, to be changed; its relative paths become absolute.
        InvalidArgument: not a spec."""
        from penstock import spec_file

        spec = spec_file.read(os.fsdecode(path))
        folder = os.path.dirname(_absolute(path))

        def found_from_here(value: Any) -> Any:
            if isinstance(value, list):
                return [found_from_here(each) for each in value]
            if isinstance(value, dict):
                return {key: found_from_here(each) for key, each in value.items()}
            # The broker refuses "~" and says what to write.
            if not isinstance(value, str) or value.startswith("~"):
                return value
            return os.path.join(folder, value)

        source = spec.get("source")
        for kind, options in source.items() if isinstance(source, dict) else ():
            if isinstance(options, dict):
                options.update({key: found_from_here(options[key])
                                for key in ("files", "path", "file", "object", "images",
                                            "labels")
                                if key in options})
                if kind == "npy" and isinstance(options.get("features"), dict):
                    options["features"] = {
                        key: found_from_here(files)
                        for key, files in options["features"].items()}
        return cls(spec)

    # ---- steps

    def named(self, name: str) -> "Dataset":
        """Sets the dataset's name; all ranks of a job must agree."""
        return self._with(dataset=name)

    def shuffle(self, seed: int = 0,
                each_epoch: Optional[bool] = None) -> "Dataset":
        """Shuffles globally, without a buffer: a new order every epoch, or one for
        all (``each_epoch=False``)."""
        return self._with(shuffle=_given(seed=seed, each_epoch=each_epoch))

    def seed(self, seed: int) -> "Dataset":
        """Sets the seed of augmentation; the shuffle's seed by default."""
        return self._with(seed=seed)

    def map(self, *operations: Operation) -> "Dataset":
        """Appends operations on each row. ``penstock.python`` is for a function of
        your own. TypeError: not an operation."""
        for operation in operations:
            if not isinstance(operation, Mapping):
                raise TypeError(
                    f"{operation!r} is not an operation: use penstock.decode_image(...) "
                    "and others; a function of your own is "
                    'penstock.python("module:function")')
        return self._with(map=[*self._spec.get("map", []), *operations])

    def batch(self, size: Optional[int] = None, *,
              per_rank: Optional[int] = None,
              last: Optional[str] = None) -> "Dataset":
        """Global batches of ``size`` rows, or ``per_rank`` rows for each rank.
        ``last``: "partial" delivers the short last batch, "drop" leaves it out,
        "pad" fills it with zeros."""
        return self._with(batch=_given(size=size, per_rank=per_rank, last=last))

    def repeat(self, epochs: Optional[int] = None) -> "Dataset":
        """Sets the number of epochs; None: forever."""
        return self._with(epochs="forever" if epochs is None else epochs)

    def steps_per_epoch(self, steps: int) -> "Dataset":
        """Sets the steps of an epoch. Each epoch begins at the start of its order,
        and wraps where it has more steps than the data."""
        return self._with(steps_per_epoch=steps)

    def prefetch(self, batches: int) -> "Dataset":
        """Finished batches kept ready per rank (2); with ``hold`` it determines the
        memory."""
        return self._with(prefetch=batches)

    def hold(self, batches: int) -> "Dataset":
        """Batches a rank may hold at once (3): the loop variable, one that the loop
        keeps, and the one it asks for."""
        return self._with(hold=batches)

    def on_error(self, what: str) -> "Dataset":
        """For a record that cannot be read or decoded: "fail", "skip" it, or
        "substitute" the next readable one."""
        return self._with(on_error=what)

    # ---- what it is

    @property
    def name(self) -> str:
        """The key `dataset` of the spec."""
        return str(self._spec["dataset"])

    def to_dict(self) -> Dict[str, Any]:
        """The spec as plain JSON types."""
        spec: Dict[str, Any] = _plain(self._spec)
        return spec

    def to_json(self) -> str:
        """The spec as JSON, which ``penstock_options.spec`` takes."""
        # Unescaped: the broker reads JSON as YAML, which has no surrogate pairs.
        return json.dumps(self.to_dict(), ensure_ascii=False)

    def to_yaml(self) -> str:
        """The text of a spec file."""
        import yaml

        return str(yaml.safe_dump(self.to_dict(), sort_keys=False,
                                  default_flow_style=None, allow_unicode=True))

    def __eq__(self, other: object) -> bool:
        return (self.to_dict() == other.to_dict()
                if isinstance(other, Dataset) else NotImplemented)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"penstock.Dataset({self.to_dict()!r})"


def _absolute_files(files: Files) -> Any:
    """A path, several, or {"list": path}."""
    if isinstance(files, Mapping):
        return {key: _absolute(each) for key, each in files.items()}
    if isinstance(files, (str, bytes, os.PathLike)):
        return _absolute(files)
    paths = [_absolute(each) for each in files]
    return paths[0] if len(paths) == 1 else paths


def _absolute(path: Path) -> str:
    text = os.fsdecode(path)
    if not text:
        raise InvalidArgument("path: wanted a path, got an empty text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"path {text!r}: a spec is UTF-8, and this name is not: rename it, or "
            "use a link of another name") from None
    if re.match(r"[A-Za-z0-9+.-]+://|pipe:", text):
        return text  # the broker says why it does not read it
    return os.path.abspath(text)
