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
# [low, high], or a number: how far from the middle.
Interval = Union[float, Sequence[float]]
Fill = Union[int, Sequence[int]]
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
    """One entry of a spec's ``map``; made by ``decode_image``, ``normalize``,
    ``lookup`` and the other functions of operations."""


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


def center_pixels(shorter: Optional[int] = None, mode: Optional[str] = None,
                  fill: Optional[Fill] = None,
                  mask_fill: Optional[int] = None) -> Dict[str, Any]:
    """The middle pixels, as many as the size: torchvision's CenterCrop, after its
    Resize(``shorter``) (0: no resize). ``mode``: what is beside a smaller picture:
    "constant" (``fill``), "edge", "reflect" or "symmetric"."""
    return {"center_pixels": _given(shorter=shorter, mode=mode, fill=fill,
                                    mask_fill=mask_fill)}


def random_pixels(padding: Union[int, Sequence[int], None] = None,
                  shorter: Union[int, Sequence[int], None] = None,
                  mode: Optional[str] = None, fill: Optional[Fill] = None,
                  mask_fill: Optional[int] = None) -> Dict[str, Any]:
    """Pixels at random, as many as the size: torchvision's RandomCrop, of a picture
    padded by ``padding`` (one number, or left, top, right, bottom) and where it is
    smaller. ``shorter``: the shorter side is resized to it first, or to a random
    [low, high]. Others: as in ``center_pixels``."""
    return {"random_pixels": _given(shorter=shorter, padding=padding, mode=mode,
                                    fill=fill, mask_fill=mask_fill)}


def at(top: int, left: int, height: int, width: int) -> Dict[str, Any]:
    """A crop of these pixels."""
    return {"at": _given(top=top, left=left, height=height, width=width)}


def fit(fill: Optional[Fill] = None, mask_fill: Optional[int] = None) -> Dict[str, Any]:
    """The whole picture, as large as fits, in the middle of ``fill`` (0)."""
    return {"fit": _given(fill=fill, mask_fill=mask_fill)}


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
                 mask_dtype: Any = None,
                 interpolation: Optional[str] = None) -> Operation:
    """JPEG, PNG, WebP or TIFF -> uint8 [height, width, channels], antialiased
    bilinear; transparency is dropped.

    ``size``: [height, width] or one number; ``crop``: ``center(...)``,
    ``random_resized(...)``, ``center_pixels(...)``, ``random_pixels(...)``,
    ``at(...)``, ``fit(...)``, or the name of one; ``channels``: "rgb" or "gray";
    ``interpolation``: "bilinear", "bicubic" or "lanczos"; ``exact``: bit-exact with
    Pillow, half as fast; ``orientation``: "ignore" (as it is stored) or "apply" (turned upright by its
    EXIF orientation). ``mask``: features that are masks of the picture: cropped
    alike, resized by the nearest pixel, [height, width] with the values of Pillow's
    array (gray, or the index into a palette), ``mask_dtype`` "uint8" or "int32"."""
    return _operation("decode_image", size=size, crop=crop, channels=channels,
                      exact=exact, feature=feature, orientation=orientation,
                      mask=mask, mask_dtype=_optional_dtype(mask_dtype),
                      interpolation=interpolation)


def crop(how: Union[str, Mapping[str, Any]], size: Size,
         feature: Optional[Names] = None, *, mask: Optional[Names] = None,
         interpolation: Optional[str] = None) -> Operation:
    """uint8 picture -> uint8 of ``size`` (as in ``decode_image``); ``how``: as
    ``crop`` of ``decode_image``; ``mask``: masks of it, of any dtype, cropped alike
    and resized by the nearest pixel."""
    where = {how: {}} if isinstance(how, str) else dict(how)
    return _operation("crop", **where, size=size, feature=feature, mask=mask,
                      interpolation=interpolation)


def resize(size: Optional[Size] = None, feature: Optional[Names] = None, *,
           shorter: Optional[int] = None, within: Optional[Size] = None,
           interpolation: Optional[str] = None,
           mask: Optional[Names] = None) -> Operation:
    """uint8 picture -> uint8 of ``size`` (as in ``decode_image``), antialiased; or so
    that its ``shorter`` side has that many pixels; or made smaller until it is
    ``within`` a size. ``interpolation``: "nearest", "bilinear", "bicubic" or
    "lanczos"; ``mask``: masks of it, of any dtype, by the nearest pixel."""
    return _operation("resize", size=size, shorter=shorter, within=within,
                      interpolation=interpolation, feature=feature, mask=mask)


def pad(by: Union[int, Sequence[int], None] = None, size: Optional[Size] = None,
        mode: Optional[str] = None, fill: Optional[Fill] = None,
        feature: Optional[Names] = None, *, mask: Optional[Names] = None,
        mask_fill: Optional[int] = None) -> Operation:
    """Adds pixels beside a uint8 picture: ``by`` how many on each side (one number, or
    left, top, right, bottom), or until it has ``size``. ``mode``, ``fill``: as in
    ``center_pixels``; ``mask``: masks of it, of any dtype."""
    return _operation("pad", by=by, size=size, mode=mode, fill=fill, feature=feature,
                      mask=mask, mask_fill=mask_fill)


def flip(horizontal: Optional[float] = None,
         feature: Optional[Names] = None, *, vertical: Optional[float] = None,
         mask: Optional[Names] = None) -> Operation:
    """Mirrors a picture, and its masks with it, left to right with probability
    ``horizontal`` (0.5), top to bottom with probability ``vertical`` (0)."""
    return _operation("flip", horizontal=horizontal, vertical=vertical,
                      feature=feature, mask=mask)


# The steps below take uint8 pictures of 1 or 3 channels and keep their form. Values are
# Pillow's; draws have the distributions of torchvision.transforms.v2, whose class each
# docstring names. ``probability``: that of changing a picture. ``fill``: 0 to 255, one
# number or one per channel, where there is no picture; ``mask_fill``: the same of masks.


def rotate(degrees: Interval, interpolation: Optional[str] = None,
           fill: Optional[Fill] = None, feature: Optional[Names] = None, *,
           center: Optional[Sequence[float]] = None,
           probability: Optional[float] = None, mask: Optional[Names] = None,
           mask_fill: Optional[int] = None) -> Operation:
    """RandomRotation: counterclockwise by an angle of the range ``degrees`` ([low,
    high], or a number: that far from 0), around ``center`` ([x, y]; the picture's).
    ``interpolation``: "nearest", "bilinear" or "bicubic"; masks take the nearest."""
    return _operation("rotate", degrees=degrees, interpolation=interpolation,
                      fill=fill, center=center, probability=probability,
                      feature=feature, mask=mask, mask_fill=mask_fill)


def affine(degrees: Optional[Interval] = None,
           translate: Optional[Sequence[Interval]] = None,
           scale: Optional[Sequence[float]] = None, shear: Any = None,
           interpolation: Optional[str] = None, fill: Optional[Fill] = None,
           feature: Optional[Names] = None, *,
           center: Optional[Sequence[float]] = None,
           probability: Optional[float] = None, mask: Optional[Names] = None,
           mask_fill: Optional[int] = None) -> Operation:
    """RandomAffine: ``degrees`` clockwise, as in ``rotate``; ``translate``: along x and
    y, each a range or how far from 0, as parts of the width and height; ``scale``:
    the range of the factor; ``shear``: degrees, a number along x, or two as in
    ``translate``. A range [a, a] fixes a number."""
    return _operation("affine", degrees=degrees, translate=translate, scale=scale,
                      shear=shear, interpolation=interpolation, fill=fill,
                      center=center, probability=probability, feature=feature,
                      mask=mask, mask_fill=mask_fill)


def perspective(distortion: Optional[float] = None,
                probability: Optional[float] = None,
                interpolation: Optional[str] = None, fill: Optional[Fill] = None,
                feature: Optional[Names] = None, *,
                corners: Optional[Sequence[float]] = None,
                mask: Optional[Names] = None,
                mask_fill: Optional[int] = None) -> Operation:
    """RandomPerspective: corners move by up to ``distortion`` (0.5) of half a side, or
    to ``corners``: [x, y] of top left, top right, bottom right, bottom left, in one
    list. ``probability``: 0.5."""
    return _operation("perspective", distortion=distortion, corners=corners,
                      interpolation=interpolation, fill=fill,
                      probability=probability, feature=feature, mask=mask,
                      mask_fill=mask_fill)


def color_jitter(brightness: Optional[Interval] = None,
                 contrast: Optional[Interval] = None,
                 saturation: Optional[Interval] = None,
                 hue: Optional[Interval] = None,
                 feature: Optional[Names] = None, *,
                 probability: Optional[float] = None) -> Operation:
    """ColorJitter: each a range of its factor, or how far that is from 1 (``hue``: of
    its turn, from 0; 0.5 is half a circle), in a random order."""
    return _operation("color_jitter", brightness=brightness, contrast=contrast,
                      saturation=saturation, hue=hue, probability=probability,
                      feature=feature)


def grayscale(probability: Optional[float] = None,
              feature: Optional[Names] = None) -> Operation:
    """RandomGrayscale (0.1); the channels stay as many."""
    return _operation("grayscale", probability=probability, feature=feature)


def blur(kernel: int, sigma: Optional[Sequence[float]] = None,
         feature: Optional[Names] = None, *,
         probability: Optional[float] = None) -> Operation:
    """GaussianBlur: ``kernel`` pixels, odd, with a standard deviation of the range
    ``sigma`` ([0.1, 2]). Values are at most 1 off torchvision's."""
    return _operation("blur", kernel=kernel, sigma=sigma, probability=probability,
                      feature=feature)


def sharpness(factor: float, probability: Optional[float] = None,
              feature: Optional[Names] = None) -> Operation:
    """RandomAdjustSharpness (0.5): ``factor`` 0 smooths, 2 sharpens."""
    return _operation("sharpness", factor=factor, probability=probability,
                      feature=feature)


def solarize(threshold: Optional[float] = None, probability: Optional[float] = None,
             feature: Optional[Names] = None) -> Operation:
    """RandomSolarize (0.5): inverts values from ``threshold`` (128) up."""
    return _operation("solarize", threshold=threshold, probability=probability,
                      feature=feature)


def posterize(bits: int, probability: Optional[float] = None,
              feature: Optional[Names] = None) -> Operation:
    """RandomPosterize (0.5): keeps the upper ``bits`` of each value."""
    return _operation("posterize", bits=bits, probability=probability,
                      feature=feature)


def equalize(probability: Optional[float] = None,
             feature: Optional[Names] = None) -> Operation:
    """RandomEqualize (0.5)."""
    return _operation("equalize", probability=probability, feature=feature)


def autocontrast(probability: Optional[float] = None,
                 feature: Optional[Names] = None) -> Operation:
    """RandomAutocontrast (0.5)."""
    return _operation("autocontrast", probability=probability, feature=feature)


def invert(probability: Optional[float] = None,
           feature: Optional[Names] = None) -> Operation:
    """RandomInvert (0.5)."""
    return _operation("invert", probability=probability, feature=feature)


def rand_augment(operations: Optional[int] = None, magnitude: Optional[int] = None,
                 bins: Optional[int] = None, interpolation: Optional[str] = None,
                 fill: Optional[Fill] = None, feature: Optional[Names] = None, *,
                 mask: Optional[Names] = None,
                 mask_fill: Optional[int] = None) -> Operation:
    """RandAugment: ``operations`` (2) random ones of ``magnitude`` (9) of ``bins``
    (31). Masks take part in what moves pixels."""
    return _operation("rand_augment", operations=operations, magnitude=magnitude,
                      bins=bins, interpolation=interpolation, fill=fill,
                      feature=feature, mask=mask, mask_fill=mask_fill)


def trivial_augment(bins: Optional[int] = None, interpolation: Optional[str] = None,
                    fill: Optional[Fill] = None, feature: Optional[Names] = None, *,
                    mask: Optional[Names] = None,
                    mask_fill: Optional[int] = None) -> Operation:
    """TrivialAugmentWide: one random operation, of a random magnitude of ``bins``
    (31)."""
    return _operation("trivial_augment", bins=bins, interpolation=interpolation,
                      fill=fill, feature=feature, mask=mask, mask_fill=mask_fill)


def aug_mix(severity: Optional[int] = None, width: Optional[int] = None,
            depth: Optional[int] = None, alpha: Optional[float] = None,
            all_operations: Optional[bool] = None,
            interpolation: Optional[str] = None, fill: Optional[Fill] = None,
            feature: Optional[Names] = None) -> Operation:
    """AugMix: ``width`` (3) chains of ``depth`` (0: 1 to 3) operations, of a strength of
    up to ``severity`` (3) of 10, mixed with weights of ``alpha`` (1)."""
    return _operation("aug_mix", severity=severity, width=width, depth=depth,
                      alpha=alpha, all_operations=all_operations,
                      interpolation=interpolation, fill=fill, feature=feature)


def random_erasing(probability: Optional[float] = None,
                   scale: Optional[Sequence[float]] = None,
                   ratio: Optional[Sequence[float]] = None,
                   value: Union[float, Sequence[float], str, None] = None,
                   feature: Optional[Names] = None) -> Operation:
    """RandomErasing (0.5): overwrites a rectangle of area ``scale`` ([0.02, 0.33]) and
    height / width ``ratio`` ([0.3, 3.3]) with ``value``: a number (0), one per channel,
    or "random", normal. Of any dtype and layout; put it after ``normalize``."""
    return _operation("random_erasing", probability=probability, scale=scale,
                      ratio=ratio, value=value, feature=feature)


def normalize(mean: Optional[PerChannel] = None, std: Optional[PerChannel] = None,
              dtype: Optional[str] = None, layout: Optional[str] = None,
              feature: Optional[Names] = None, *,
              from_: Optional[Path] = None) -> Operation:
    """(value - mean) / std; of uint8, which are pictures, (value / 255 - mean) / std.
    ``mean``, ``std``: one number, or one for each value of the last dimension, which
    are a picture's channels; ``dtype``: "float32", "float16" or "bfloat16";
    ``layout``: "hwc" or "chw". ``from_``: instead of both a file that ``penstock
    analyze`` has written."""
    return _operation("normalize", mean=mean, std=std, dtype=_optional_dtype(dtype),
                      layout=layout, feature=feature,
                      **{"from": None if from_ is None else _absolute(from_)})


def cast(dtype: str, layout: Optional[str] = None,
         feature: Optional[Names] = None) -> Operation:
    """Converts to ``dtype``: rounds to nearest even and saturates; to "bool", all
    but 0 is true. ``layout``: "hwc" or "chw"."""
    return _operation("cast", dtype=dtype_name(dtype), layout=layout,
                      feature=feature)


def rescale(scale: float, offset: Optional[float] = None, dtype: Any = None,
            layout: Optional[str] = None,
            feature: Optional[Names] = None) -> Operation:
    """value * ``scale`` + ``offset`` (0), as Keras' Rescaling; ``dtype``: "float32"
    or another floating-point one; ``layout``: "hwc" or "chw"."""
    return _operation("rescale", scale=scale, offset=offset,
                      dtype=_optional_dtype(dtype), layout=layout, feature=feature)


def clip(min: Optional[float] = None, max: Optional[float] = None,
         feature: Optional[Names] = None) -> Operation:
    """Limits values to [``min``, ``max``], as ``tf.clip_by_value`` and
    ``numpy.clip``; NaN stays."""
    return _operation("clip", min=min, max=max, feature=feature)


def bucketize(boundaries: Sequence[float],
              feature: Optional[Names] = None) -> Operation:
    """int64: how many of the ``boundaries``, which increase, are not above the value,
    as Keras' Discretization."""
    return _operation("bucketize", boundaries=boundaries, feature=feature)


def one_hot(classes: int, dtype: Any = None, out_of_range: Optional[str] = None,
            feature: Optional[Names] = None) -> Operation:
    """Integers [...] -> ``dtype`` ("float32") [..., ``classes``], as ``tf.one_hot``.
    ``out_of_range``: another label is an error of its sample ("fail"), or all
    "zeros"."""
    return _operation("one_hot", classes=classes, dtype=_optional_dtype(dtype),
                      out_of_range=out_of_range, feature=feature)


def label_smoothing(smoothing: Optional[float] = None,
                    feature: Optional[Names] = None) -> Operation:
    """One-hot labels -> value * (1 - ``smoothing``) + ``smoothing`` (0.1) / classes, as
    Keras' CategoricalCrossentropy and PyTorch's CrossEntropyLoss."""
    return _operation("label_smoothing", smoothing=smoothing, feature=feature)


def mixup(alpha: Optional[float] = None, cutmix_alpha: Optional[float] = None,
          switch_probability: Optional[float] = None,
          probability: Optional[float] = None, feature: Optional[Names] = None,
          label: Optional[Names] = None) -> Operation:
    """mixup (``alpha`` 0.2), cutmix (``cutmix_alpha``), or with both one of them for each
    pair (``switch_probability`` 0.5: cutmix), as timm's Mixup with mode="pair". Mixes
    finished rows two by two, whichever ranks get them: ``feature`` ("image"), floats or
    uint8, and ``label`` ("label"), floats (``one_hot``). Put it last."""
    return _operation("mixup", feature=feature, label=label, alpha=alpha,
                      cutmix_alpha=cutmix_alpha, switch_probability=switch_probability,
                      probability=probability)


def cutmix(alpha: Optional[float] = None, probability: Optional[float] = None,
           feature: Optional[Names] = None, label: Optional[Names] = None) -> Operation:
    """CutMix (1): swaps a random box of two finished pictures and mixes their one-hot
    labels by its area. Put it last; ``mixup`` has both."""
    return _operation("cutmix", feature=feature, label=label, alpha=alpha,
                      probability=probability)


def _vocabulary(vocabulary: Union[Path, Sequence[Any], Mapping[str, Any]]) -> Any:
    if isinstance(vocabulary, (str, os.PathLike)):
        return _absolute(vocabulary)
    return vocabulary


def vocabulary(from_: Path, feature: Optional[str] = None,
               min_count: Optional[int] = None,
               max_size: Optional[int] = None) -> Dict[str, Any]:
    """A ``vocabulary`` of ``lookup``: what ``penstock analyze`` has counted and written
    to the file ``from_``, the most frequent first. ``feature``: of that file (the same
    name); ``min_count`` (1), ``max_size``: of the tokens that are taken."""
    return _given(feature=feature, min_count=min_count, max_size=max_size,
                  **{"from": _absolute(from_)})


def lookup(vocabulary: Union[Path, Sequence[Any], Mapping[str, Any]],
           oov_buckets: Optional[int] = None, mask: Union[str, int, None] = None,
           default: Optional[int] = None,
           feature: Optional[Names] = None) -> Operation:
    """Text or integers -> their numbers in a vocabulary, int64, as Keras' StringLookup
    and IntegerLookup: first the ``mask``, if there is one, then the ``oov_buckets`` (1),
    then the vocabulary in its order.

    ``vocabulary``: the tokens, a file with one a line, or ``vocabulary(...)``. ``default``: the number of
    what is not in it, with ``oov_buckets=0``; else that is an error of its sample."""
    return _operation("lookup", vocabulary=_vocabulary(vocabulary),
                      oov_buckets=oov_buckets, mask=mask, default=default,
                      feature=feature)


def hash(bins: int, mask: Union[str, int, None] = None,
         feature: Optional[Names] = None) -> Operation:
    """Text or integers -> FarmHash's Fingerprint64 modulo ``bins``, int64, as Keras'
    Hashing; ``mask`` has bin 0 for itself."""
    return _operation("hash", bins=bins, mask=mask, feature=feature)


def parse_json(fields: Mapping[str, Any], longer: Optional[str] = None,
               feature: Optional[str] = None) -> Operation:
    """Values of the JSON document that a text (``feature``: "text") is, in place of it.
    ``fields``, ``longer``: as in ``Dataset.json_lines``."""
    return _operation("parse_json", fields=features_of(fields), longer=longer,
                      feature=feature)


def pad_sequence(length: int, value: Optional[float] = None,
                 pad: Optional[str] = None, cut: Optional[str] = None,
                 feature: Optional[Names] = None) -> Operation:
    """[n, ...] -> [``length``, ...]: adds ``value`` (0) at the "end" or "start"
    (``pad``), or cuts there (``cut``), as Keras' pad_sequences. Of a text, its
    NAME_bytes becomes how many are left."""
    return _operation("pad_sequence", length=length, value=value, pad=pad, cut=cut,
                      feature=feature)


def concatenate(features: Sequence[str], to: str) -> Operation:
    """Joins features of one dtype along their last dimension, as Keras' Concatenate;
    ``to``: the name of the result. A single number counts as a list of one."""
    return _operation("concatenate", features=features, to=to)


def reshape(shape: Sequence[int], feature: Optional[Names] = None) -> Operation:
    """The same values in another ``shape``, as ``tf.reshape``: one dimension may be
    -1."""
    return _operation("reshape", shape=shape, feature=feature)


def select(features: Names) -> Operation:
    """Keeps these features only, in this order; a text brings its NAME_bytes."""
    return _operation("select", features=features)


def drop(features: Names) -> Operation:
    """Leaves features out; a text takes its NAME_bytes along."""
    return _operation("drop", features=features)


def rename(features: Mapping[str, str]) -> Operation:
    """Gives features other names, {old: new}; a text takes its NAME_bytes along."""
    return _operation("rename", features=features)


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
    def concat(cls, parts: Sequence["Dataset"], *,
               name: Optional[str] = None) -> "Dataset":
        """The records of several datasets with the same features, one after the other.
        Of each part its source and what it selects count: the rest is said of the
        whole. ValueError: a part says more."""
        if isinstance(parts, Dataset):
            raise TypeError("wanted a list of datasets: concat([a, b])")
        return cls._of("concat", {"parts": [_part(part) for part in parts]}, name)

    @classmethod
    def mix(cls, parts: Sequence["Dataset"],
            weights: Optional[Sequence[float]] = None, *,
            when_out: Optional[str] = None,
            schedule: Optional[Mapping[int, Sequence[float]]] = None,
            block: Optional[int] = None,
            name: Optional[str] = None) -> "Dataset":
        """Records of several datasets with the same features, in proportion to their
        weights (1 each): of any number of rows each part has its share, less than one
        row more or less. ``shuffle`` shuffles each part alone. ``when_out``, when a part
        has no more records: "stop" ends the pass; "drop": the others go on, until all
        records came once; "repeat": it begins anew, until each part was complete once.
        ``schedule``: other weights by the row of the pass from which on they hold.
        ``block`` (1): so many rows at a time are of one part; with the size of a batch,
        each batch is of one part."""
        if isinstance(parts, Dataset):
            raise TypeError("wanted a list of datasets: mix([a, b], [0.7, 0.3])")
        if weights is None:
            weights = [1] * len(parts)
        if len(weights) != len(parts):
            raise ValueError(f"{len(weights)} weights for {len(parts)} parts")
        return cls._of("mix", _given(
            parts=[{**_part(part), "weight": weight}
                   for part, weight in zip(parts, weights)],
            when_out=when_out, block=block,
            schedule=None if schedule is None else [
                {"row": row, "weights": list(schedule[row])}
                for row in sorted(schedule)]), name)

    @classmethod
    def zip(cls, parts: Sequence["Dataset"],
            prefixes: Optional[Sequence[Optional[str]]] = None, *,
            name: Optional[str] = None) -> "Dataset":
        """Records made of one record of each of several datasets, as tf.data's zip:
        record i has the features of record i of each; it ends with the shortest.
        ``prefixes``: what the names of the features of each part begin with."""
        if isinstance(parts, Dataset):
            raise TypeError("wanted a list of datasets: zip([a, b])")
        if prefixes is not None and len(prefixes) != len(parts):
            raise ValueError(f"{len(prefixes)} prefixes for {len(parts)} parts")
        return cls._of("zip", {"parts": [
            {**_part(part), **_given(prefix=prefixes[i] if prefixes else None)}
            for i, part in enumerate(parts)]}, name)

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

        def find(source: Any) -> None:
            for kind, options in source.items() if isinstance(source, dict) else ():
                if not isinstance(options, dict):
                    continue
                # Of image_folder, labels are no file.
                options.update({key: found_from_here(options[key])
                                for key in ("files", "path", "file", "folder", "object",
                                            "images", "labels")
                                if key in options and (key != "labels" or kind == "idx")})
                find({"masks": options.get("masks")})
                if kind == "npy" and isinstance(options.get("features"), dict):
                    options["features"] = {
                        key: found_from_here(files)
                        for key, files in options["features"].items()}
                parts = options.get("parts")
                for part in parts if isinstance(parts, list) else ():
                    if isinstance(part, dict):
                        find(part.get("source"))
                        find_selected(part.get("select"))

        def find_selected(steps: Any) -> None:
            for step in steps if isinstance(steps, list) else ():
                selected = step.get("filter") if isinstance(step, dict) else None
                if isinstance(selected, dict) and "records" in selected:
                    selected["records"] = found_from_here(selected["records"])

        find(spec.get("source"))
        find_selected(spec.get("select"))
        return cls(spec)

    # ---- steps

    def named(self, name: str) -> "Dataset":
        """Sets the dataset's name; all ranks of a job must agree."""
        return self._with(dataset=name)

    # ---- which records a pass has: each step selects of what the one before left

    def take(self, records: int) -> "Dataset":
        """Selects the first records; all if there are fewer."""
        return self._select(take=records)

    def skip(self, records: int) -> "Dataset":
        """Selects all but the first records."""
        return self._select(skip=records)

    def filter(self, column: Union[str, Callable[[Dict[str, Any]], Any], None] = None,
               *, include: Optional[Sequence[Any]] = None,
               exclude: Optional[Sequence[Any]] = None,
               min: Optional[float] = None, max: Optional[float] = None,
               matches: Optional[str] = None,
               records: Optional[Path] = None) -> "Dataset":
        """Selects records by a column, a function, or a file of ``penstock filter``.

        A column is known without reading the records, such as ``label``, ``class``,
        ``path``, ``file``, ``bytes`` (an error names those that there are): its value
        is one of ``include``, none of ``exclude``, within ``min`` and ``max``, matches
        a pattern of * and ?; all that is given.

        A function gets a row as a dict of arrays, as the steps of ``map`` so far make
        it (none of which may be random), and returns True or False. Processes of a
        private broker ask it of each record that is selected so far, once, in this
        call, with a progress bar on a terminal; its answers are kept in the cache
        folder for as long as data and function are the same. An exception of it is an
        error that names the sample; after ``on_error("skip")`` such a sample is left
        out, with a warning.

        ``records``: a file that ``penstock filter`` has written."""
        if column is None or callable(column):
            if (column is None) == (records is None):
                raise TypeError("wanted one of: a column, a function, records")
            if any(each is not None for each in (include, exclude, min, max, matches)):
                raise TypeError("include, exclude, min, max and matches are of a column")
            if column is not None:
                from penstock import predicate

                records = predicate.kept_records(self.to_dict(), column)
            assert records is not None
            return self._select(filter={"records": _absolute(records)})
        if not isinstance(column, str) or records is not None:
            raise TypeError("wanted one of: a column, a function, records")
        values = {key: None if each is None else [str(value) for value in each]
                  for key, each in (("in", include), ("except", exclude))}
        return self._select(filter=_given(column=column, min=min, max=max,
                                          matches=matches, **values))

    def balance(self, by: str, weights: Optional[Mapping[Any, float]] = None, *,
                when_out: Optional[str] = None) -> "Dataset":
        """As many rows of each value of a column (see ``filter``), or in proportion to
        ``weights`` (those that are not named have 1). ``when_out``, when a value has no
        more records: "repeat" begins it anew until each was complete once, "stop",
        "drop", as in ``mix``."""
        return self._select(balance=_given(
            by=by, when_out=when_out,
            weights=None if weights is None else {
                str(value): weight for value, weight in weights.items()}))

    def sample(self, rows: Optional[int] = None, *, weight: Optional[str] = None,
               by: Optional[str] = None,
               weights: Optional[Mapping[Any, float]] = None,
               seed: int = 0) -> "Dataset":
        """Draws ``rows`` records (as many as there are) with replacement, anew in each
        epoch, as PyTorch's WeightedRandomSampler: in proportion to the numbers in the
        column ``weight``, or to the ``weights`` of the values of the column ``by``
        (those that are not named have 1), or evenly."""
        return self._select(sample=_given(
            rows=rows, weight=weight, by=by, seed=seed,
            weights=None if weights is None else {
                str(value): each for value, each in weights.items()}))

    def interleave(self, files: int = 16, block: int = 1) -> "Dataset":
        """Takes ``block`` records of each of ``files`` files in turn, as tf.data does
        with files: an order for data that are not shuffled."""
        return self._select(interleave=_given(files=files, block=block))

    def shard(self, of: int, index: int, by: Optional[str] = None) -> "Dataset":
        """Selects every ``of``-th record from ``index`` on, as tf.data does; with
        ``by`` every ``of``-th value of that column with all its records, for example
        ``by="file"``."""
        return self._select(shard=_given(index=index, of=of, by=by))

    def times(self, times: int) -> "Dataset":
        """Selects all records several times in one pass, each time with random
        numbers of augmentation of its own."""
        return self._select(repeat=times)

    def split(self, part: str, of: Mapping[str, float], seed: int = 0,
              by: Optional[str] = None) -> "Dataset":
        """Selects one of several parts that have no record in common: ``of`` has the
        fraction of each, such as {"train": 0.9, "validation": 0.1}. ``by``: records with
        one value of this column stay together, also when others are added."""
        if not isinstance(part, str):
            raise TypeError('wanted split("train", {"train": 0.9, "validation": 0.1})')
        return self._select(split=_given(of=dict(of), part=part, seed=seed, by=by))

    def fold(self, number: int, of: int = 5, part: str = "train",
             seed: int = 0, by: Optional[str] = None) -> "Dataset":
        """Selects for k-fold cross-validation: with ``part="validation"`` the records
        of this fold, with "train" all others. ``by``: as in ``split``."""
        return self._select(fold=_given(number=number, of=of, part=part, seed=seed,
                                        by=by))

    def _select(self, **step: Any) -> "Dataset":
        return self._with(select=[*self._spec.get("select", []), step])

    def shuffle(self, seed: int = 0,
                each_epoch: Optional[bool] = None, *,
                window_files: Optional[int] = None) -> "Dataset":
        """Shuffles globally, without a buffer: a new order every epoch, or one for
        all (``each_epoch=False``). ``window_files``: the files come in a random order,
        and records are shuffled within windows of so many of them, for storage that
        reads one file to its end faster than many in turn."""
        return self._with(shuffle=_given(seed=seed, each_epoch=each_epoch,
                                         window_files=window_files))

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

    def cache(self, memory: Optional[Union[int, str]] = None,
              disk: Optional[Union[int, str]] = None, at: Optional[int] = None,
              zstd: Optional[int] = None) -> "Dataset":
        """Keeps rows as the first ``at`` steps of ``map`` have made them, by default all
        before the first that draws random numbers or is a function (0: records as they
        are read), for all jobs of the host. ``memory`` or ``disk``: the size, in bytes or
        such as "8G". ``zstd``: the level that entries on the disk are compressed with.
        No value of a batch changes."""
        return self._with(cache=_given(memory=memory, disk=disk, at=at, zstd=zstd))

    def snapshot(self, path: Path, at: Optional[int] = None,
                 zstd: Optional[int] = None) -> "Dataset":
        """The same in the folder ``path``, for good: written while a job takes all
        records, and read instead of them from then on. One of other data or steps is
        refused."""
        return self._with(snapshot=_given(path=os.fspath(path), at=at, zstd=zstd))

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

    def shard_policy(self, policy: str) -> "Dataset":
        """How the ranks divide the data, by tf.distribute's names: "auto" and "data"
        by rows, "file" by whole files, "off" not at all: every rank gets everything."""
        return self._with(shard=policy)

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


def _part(dataset: Dataset) -> Dict[str, Any]:
    if not isinstance(dataset, Dataset):
        raise TypeError(f"{dataset!r} is not a Dataset; wanted a list of them")
    spec = dataset.to_dict()
    more = sorted(set(spec) - {"dataset", "source", "select"})
    if more:
        raise ValueError(f"a part of a dataset has a source and a selection alone: say "
                         f"{', '.join(more)} of the whole")
    spec.pop("dataset")
    return spec


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
