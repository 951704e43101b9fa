"""The operations of a spec's ``map``: each function makes one entry.

None stands for the spec's default, below in parentheses. ``feature`` names the
feature that an operation changes (``image``, of ``one_hot`` and
``label_smoothing`` ``label``; or the only one), or several, which have the same
random numbers. ``boxes`` of an operation that moves pixels: boxes of the objects in its picture,
float32 [n, 4] of corners, which it moves alike. Only types are checked here: the broker
checks a spec.
"""

from __future__ import annotations

import os
from typing import Any, Callable, Dict, Mapping, Optional, Sequence, Union

from penstock.arguments import check_module
from penstock.spec_values import (Files, Fill, Interval, Names, Path, PerChannel, Size,
                                  absolute, absolute_files, dtype_name, features_of, given,
                                  optional_dtype)


class Operation(Dict[str, Any]):
    """One entry of a spec's ``map``; made by ``decode_image``, ``normalize``,
    ``lookup`` and the other functions of operations."""


def _operation(name: str, **values: Any) -> Operation:
    return Operation({name: given(**values)})


def random_resized(scale: Optional[Sequence[float]] = None,
                   ratio: Optional[Sequence[float]] = None) -> Dict[str, Any]:
    """A crop of random area (``scale`` [0.08, 1] of the picture's) and aspect
    ``ratio`` ([3/4, 4/3]), drawn as by torchvision's RandomResizedCrop."""
    return {"random_resized": given(scale=scale, ratio=ratio)}


def center(fraction: Optional[float] = None) -> Dict[str, Any]:
    """The largest centred crop of the target's aspect ratio; ``fraction`` (1)
    scales its sides."""
    return {"center": given(fraction=fraction)}


def center_pixels(shorter: Optional[int] = None, mode: Optional[str] = None,
                  fill: Optional[Fill] = None,
                  mask_fill: Optional[int] = None) -> Dict[str, Any]:
    """The middle pixels, as many as the size: torchvision's CenterCrop, after its
    Resize(``shorter``) (0: no resize). ``mode``: what is beside a smaller picture:
    "constant" (``fill``), "edge", "reflect" or "symmetric"."""
    return {"center_pixels": given(shorter=shorter, mode=mode, fill=fill,
                                    mask_fill=mask_fill)}


def random_pixels(padding: Union[int, Sequence[int], None] = None,
                  shorter: Union[int, Sequence[int], None] = None,
                  mode: Optional[str] = None, fill: Optional[Fill] = None,
                  mask_fill: Optional[int] = None) -> Dict[str, Any]:
    """Pixels at random, as many as the size: torchvision's RandomCrop, of a picture
    padded by ``padding`` (one number, or left, top, right, bottom) and where it is
    smaller. ``shorter``: the shorter side is resized to it first, or to a random
    [low, high]. Others: as in ``center_pixels``."""
    return {"random_pixels": given(shorter=shorter, padding=padding, mode=mode,
                                    fill=fill, mask_fill=mask_fill)}


def at(top: int, left: int, height: int, width: int) -> Dict[str, Any]:
    """A crop of these pixels."""
    return {"at": given(top=top, left=left, height=height, width=width)}


def fit(fill: Optional[Fill] = None, mask_fill: Optional[int] = None) -> Dict[str, Any]:
    """The whole picture, as large as fits, in the middle of ``fill`` (0)."""
    return {"fit": given(fill=fill, mask_fill=mask_fill)}


def masks(path: Path, suffix: Optional[str] = None,
          on_missing: Optional[str] = None) -> Dict[str, Any]:
    """``masks`` of ``Dataset.image_folder``: a folder whose files have the paths of the
    pictures, with ``suffix`` ("_mask.png"; ".png" if not given) for the extension;
    it may be the folder of the pictures. ``on_missing``: "error", or "skip" what has
    no partner."""
    return given(path=absolute(path), suffix=suffix, on_missing=on_missing)


def gpt_config(extra_token: Optional[bool] = None, last_partial: Optional[str] = None,
               surplus: Optional[float] = None, pad: Optional[int] = None,
               eod_mask_loss: Optional[int] = None,
               reset_position_ids: Optional[int] = None) -> Dict[str, Any]:
    """``gpt_config`` of ``Dataset.megatron``, as Megatron's GPTDatasetConfig and
    tokenizer: ``extra_token`` False where add_extra_token_to_sequence is; ``last_partial``
    "pad": of valid, with drop_last_partial_validation_sequence False; ``surplus``:
    mid_level_dataset_surplus; the tokens ``pad``, ``eod_mask_loss`` (without loss) and
    ``reset_position_ids`` (behind which positions begin again)."""
    return given(extra_token=extra_token, last_partial=last_partial, surplus=surplus,
                 pad=pad, eod_mask_loss=eod_mask_loss,
                 reset_position_ids=reset_position_ids)


def decode_image(size: Size, crop: Union[str, Mapping[str, Any], None] = None,
                 channels: Optional[str] = None, exact: Optional[bool] = None,
                 feature: Optional[Names] = None, *,
                 orientation: Optional[str] = None, mask: Optional[Names] = None,
                 boxes: Optional[Names] = None,
                 mask_dtype: Any = None,
                 interpolation: Optional[str] = None) -> Operation:
    """JPEG, PNG, WebP, TIFF, BMP, PGM or PPM -> uint8 [height, width, channels],
    antialiased bilinear; transparency is dropped.

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
                      mask=mask, boxes=boxes, mask_dtype=optional_dtype(mask_dtype),
                      interpolation=interpolation)


def decode_audio(rate: int, seconds: float, *, mono: Optional[bool] = None,
                 channels: Optional[int] = None, crop: Optional[str] = None,
                 feature: Optional[Names] = None) -> Operation:
    """What libsndfile reads (WAV, FLAC, MP3, Ogg Vorbis, Opus, AIFF, ...) -> float32
    [samples] of ``mono=True`` (the mean of the channels), [samples, channels] of
    ``channels=N``; with ``NAME.length``, how many are the row's (``batch.lengths``).

    ``rate``: a file of another one is resampled (soxr, high quality); ``seconds``:
    the room; ``crop``: "start", "center" or "random" part of a longer file, which is
    an error if not given; ``feature`` ("audio")."""
    return _operation("decode_audio", rate=rate, seconds=seconds, mono=mono,
                      channels=channels, crop=crop, feature=feature)


def mel_spectrogram(rate: int, *, mels: Optional[int] = None, fft: Optional[int] = None,
                    hop: Optional[int] = None, window: Optional[int] = None,
                    min_hz: Optional[float] = None, max_hz: Optional[float] = None,
                    power: Optional[float] = None, scale: Optional[str] = None,
                    equal_area: Optional[bool] = None, pad: Optional[str] = None,
                    log: Optional[str] = None, floor: Optional[float] = None,
                    feature: Optional[Names] = None) -> Operation:
    """float32 [samples] -> float32 [frames, mels], a list if it was one: torchaudio's
    ``MelSpectrogram``, transposed; librosa's with ``scale="slaney", equal_area=True,
    pad="zeros"``.

    ``rate``: of the samples, Hz; ``mels`` (80) filters from ``min_hz`` (0) to ``max_hz``
    (half the rate) over spectra of ``fft`` (400) samples, ``hop`` (160) apart, under a
    Hann ``window`` (``fft``); ``power`` (2) of the magnitude; ``scale``: "htk" or
    "slaney"; ``pad``: "reflect", "zeros" or "none"; ``log``: "natural" or "decibel", of
    at least ``floor`` (1e-10); ``feature`` ("audio")."""
    return _operation("mel_spectrogram", rate=rate, mels=mels, fft=fft, hop=hop,
                      window=window, min_hz=min_hz, max_hz=max_hz, power=power,
                      scale=scale, equal_area=equal_area, pad=pad, log=log, floor=floor,
                      feature=feature)


def mask_spectrogram(time: Optional[int] = None, frequency: Optional[int] = None, *,
                     times: Optional[int] = None, frequencies: Optional[int] = None,
                     share: Optional[float] = None, value: Optional[float] = None,
                     feature: Optional[Names] = None) -> Operation:
    """float32 [frames, mels] -> the same, with ``times`` (1) bands of up to ``time``
    frames, each at most ``share`` (1) of the row's, and ``frequencies`` (1) bands of up
    to ``frequency`` filters that are ``value`` (0): SpecAugment. ``feature``
    ("audio")."""
    return _operation("mask_spectrogram", time=time, frequency=frequency, times=times,
                      frequencies=frequencies, share=share, value=value, feature=feature)


def gain(decibels: Union[float, Sequence[float]],
         feature: Optional[Names] = None) -> Operation:
    """float32 -> the same, louder or less loud by a number of ``decibels`` drawn from
    [low, high], or [-decibels, decibels]; not clipped. ``feature`` ("audio")."""
    return _operation("gain", decibels=decibels, feature=feature)


def noise(files: Files, rate: int, snr: Sequence[float], *,
          probability: Optional[float] = None,
          feature: Optional[Names] = None) -> Operation:
    """float32 [samples] -> the same, with a random part of one of the recorded noises in
    ``files`` (paths, globs) added: torchaudio's ``add_noise`` at a ratio drawn from ``snr``
    [low, high], in decibels, with ``probability`` (1). ``rate``: of the samples, Hz;
    ``feature`` ("audio")."""
    return _operation("noise", files=absolute_files(files), rate=rate, snr=snr,
                      probability=probability, feature=feature)


def crop(how: Union[str, Mapping[str, Any]], size: Size,
         feature: Optional[Names] = None, *, mask: Optional[Names] = None,
         boxes: Optional[Names] = None,
         interpolation: Optional[str] = None) -> Operation:
    """uint8 picture -> uint8 of ``size`` (as in ``decode_image``); ``how``: as
    ``crop`` of ``decode_image``; ``mask``: masks of it, of any dtype, cropped alike
    and resized by the nearest pixel."""
    where = {how: {}} if isinstance(how, str) else dict(how)
    return _operation("crop", **where, size=size, feature=feature, mask=mask, boxes=boxes,
                      interpolation=interpolation)


def resize(size: Optional[Size] = None, feature: Optional[Names] = None, *,
           shorter: Optional[int] = None, within: Optional[Size] = None,
           interpolation: Optional[str] = None,
           mask: Optional[Names] = None,
           boxes: Optional[Names] = None) -> Operation:
    """uint8 picture -> uint8 of ``size`` (as in ``decode_image``), antialiased; or so
    that its ``shorter`` side has that many pixels; or made smaller until it is
    ``within`` a size. ``interpolation``: "nearest", "bilinear", "bicubic" or
    "lanczos"; ``mask``: masks of it, of any dtype, by the nearest pixel."""
    return _operation("resize", size=size, shorter=shorter, within=within,
                      interpolation=interpolation, feature=feature, mask=mask, boxes=boxes)


def pad(by: Union[int, Sequence[int], None] = None, size: Optional[Size] = None,
        mode: Optional[str] = None, fill: Optional[Fill] = None,
        feature: Optional[Names] = None, *, mask: Optional[Names] = None,
        boxes: Optional[Names] = None,
        mask_fill: Optional[int] = None) -> Operation:
    """Adds pixels beside a uint8 picture: ``by`` how many on each side (one number, or
    left, top, right, bottom), or until it has ``size``. ``mode``, ``fill``: as in
    ``center_pixels``; ``mask``: masks of it, of any dtype."""
    return _operation("pad", by=by, size=size, mode=mode, fill=fill, feature=feature,
                      mask=mask, boxes=boxes, mask_fill=mask_fill)


def flip(horizontal: Optional[float] = None,
         feature: Optional[Names] = None, *, vertical: Optional[float] = None,
         mask: Optional[Names] = None,
         boxes: Optional[Names] = None) -> Operation:
    """Mirrors a picture, and its masks with it, left to right with probability
    ``horizontal`` (0.5), top to bottom with probability ``vertical`` (0)."""
    return _operation("flip", horizontal=horizontal, vertical=vertical,
                      feature=feature, mask=mask, boxes=boxes)


# The steps below take uint8 pictures of 1 or 3 channels and keep their form. Values are
# Pillow's; draws have the distributions of torchvision.transforms.v2, whose class each
# docstring names. ``probability``: that of changing a picture. ``fill``: 0 to 255, one
# number or one per channel, where there is no picture; ``mask_fill``: the same of masks.


def rotate(degrees: Interval, interpolation: Optional[str] = None,
           fill: Optional[Fill] = None, feature: Optional[Names] = None, *,
           center: Optional[Sequence[float]] = None,
           probability: Optional[float] = None, mask: Optional[Names] = None,
           boxes: Optional[Names] = None,
           mask_fill: Optional[int] = None) -> Operation:
    """RandomRotation: counterclockwise by an angle of the range ``degrees`` ([low,
    high], or a number: that far from 0), around ``center`` ([x, y]; the picture's).
    ``interpolation``: "nearest", "bilinear" or "bicubic"; masks take the nearest."""
    return _operation("rotate", degrees=degrees, interpolation=interpolation,
                      fill=fill, center=center, probability=probability,
                      feature=feature, mask=mask, boxes=boxes, mask_fill=mask_fill)


def affine(degrees: Optional[Interval] = None,
           translate: Optional[Sequence[Interval]] = None,
           scale: Optional[Sequence[float]] = None, shear: Any = None,
           interpolation: Optional[str] = None, fill: Optional[Fill] = None,
           feature: Optional[Names] = None, *,
           center: Optional[Sequence[float]] = None,
           probability: Optional[float] = None, mask: Optional[Names] = None,
           boxes: Optional[Names] = None,
           mask_fill: Optional[int] = None) -> Operation:
    """RandomAffine: ``degrees`` clockwise, as in ``rotate``; ``translate``: along x and
    y, each a range or how far from 0, as parts of the width and height; ``scale``:
    the range of the factor; ``shear``: degrees, a number along x, or two as in
    ``translate``. A range [a, a] fixes a number."""
    return _operation("affine", degrees=degrees, translate=translate, scale=scale,
                      shear=shear, interpolation=interpolation, fill=fill,
                      center=center, probability=probability, feature=feature,
                      mask=mask, boxes=boxes, mask_fill=mask_fill)


def perspective(distortion: Optional[float] = None,
                probability: Optional[float] = None,
                interpolation: Optional[str] = None, fill: Optional[Fill] = None,
                feature: Optional[Names] = None, *,
                corners: Optional[Sequence[float]] = None,
                mask: Optional[Names] = None,
                boxes: Optional[Names] = None,
                mask_fill: Optional[int] = None) -> Operation:
    """RandomPerspective: corners move by up to ``distortion`` (0.5) of half a side, or
    to ``corners``: [x, y] of top left, top right, bottom right, bottom left, in one
    list. ``probability``: 0.5."""
    return _operation("perspective", distortion=distortion, corners=corners,
                      interpolation=interpolation, fill=fill,
                      probability=probability, feature=feature, mask=mask, boxes=boxes,
                      mask_fill=mask_fill)


def convert_boxes(from_: str, to: str, feature: Optional[Names] = None) -> Operation:
    """Boxes float32 [n, 4] from one format to another: "xyxy" (corners, which all steps
    with ``boxes`` want), "xywh" (a corner and the sides) or "cxcywh" (the centre and the
    sides): torchvision's ConvertBoundingBoxFormat. ``feature`` ("boxes")."""
    return _operation("convert_boxes", to=to, feature=feature, **{"from": from_})


def sanitize_boxes(labels: Names, min_size: Optional[float] = None,
                   min_area: Optional[float] = None, clamp: Optional[bool] = None,
                   feature: Optional[str] = None, *,
                   picture: Optional[str] = None) -> Operation:
    """SanitizeBoundingBoxes: removes boxes below ``min_size`` (1) or ``min_area`` (1), and
    the items of the lists ``labels`` that belong to them ([]: none but those of ``coco``,
    which need no naming), and changes ``NAME.length`` of each. ``clamp`` (True): they are cut off at the sides of ``picture``
    ("image") before; if False, those that reach beyond it are removed. ``feature``
    ("boxes")."""
    return _operation("sanitize_boxes", labels=labels, min_size=min_size,
                      min_area=min_area, clamp=clamp, feature=feature, picture=picture)


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
    """torchvision's RandAugment: ``operations`` (2) random ones of ``magnitude`` (9) of ``bins``
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


def timm_rand_augment(operations: Optional[int] = None,
                      magnitude: Optional[float] = None,
                      magnitude_std: Optional[float] = None,
                      magnitude_max: Optional[float] = None,
                      increasing: Optional[bool] = None,
                      probability: Optional[float] = None,
                      interpolation: Optional[str] = None,
                      fill: Optional[Fill] = None, feature: Optional[Names] = None, *,
                      mask: Optional[Names] = None,
                      mask_fill: Optional[int] = None) -> Operation:
    """timm's RandAugment, whose operations and strengths are not torchvision's; in
    this order n (2), m (10), mstd (0), mmax (10), inc (False) and p (0.5) of its
    ``--aa``: ``rand-m9-mstd0.5-inc1`` is ``timm_rand_augment(magnitude=9,
    magnitude_std=0.5, increasing=True)``. ``interpolation``: where None, bilinear or
    bicubic at random; ``fill`` (128): timm's training has the mean of the pictures.
    Masks take part in what moves pixels."""
    return _operation("timm_rand_augment", operations=operations, magnitude=magnitude,
                      magnitude_std=magnitude_std, magnitude_max=magnitude_max,
                      increasing=increasing, probability=probability,
                      interpolation=interpolation, fill=fill, feature=feature,
                      mask=mask, mask_fill=mask_fill)


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
    return _operation("normalize", mean=mean, std=std, dtype=optional_dtype(dtype),
                      layout=layout, feature=feature,
                      **{"from": None if from_ is None else absolute(from_)})


def cast(dtype: Any, layout: Optional[str] = None,
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
                      dtype=optional_dtype(dtype), layout=layout, feature=feature)


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
    return _operation("one_hot", classes=classes, dtype=optional_dtype(dtype),
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
        return absolute(vocabulary)
    return vocabulary


def buckets(by: str, count: Optional[int] = None,
            boundaries: Optional[Sequence[int]] = None) -> Dict[str, Any]:
    """The ``buckets`` of ``Dataset.batch``: rows sorted by the column ``by``, such as
    "tokens.length", into at most ``count`` buckets (8 by default) that pad least, or
    into those whose longest rows are ``boundaries``, in ascending order."""
    return given(by=by, count=count, boundaries=boundaries)


def pack(length: int, *, feature: Optional[str] = None, by: Optional[str] = None,
         method: Optional[str] = None, longer: Optional[str] = None,
         window: Optional[int] = None, across_parts: Optional[bool] = None,
         documents: Optional[int] = None, pad: Optional[Mapping[str, int]] = None,
         with_: Optional[Sequence[str]] = None,
         mask_first: Optional[bool] = None) -> Dict[str, Any]:
    """The ``pack`` of ``Dataset.batch``: rows of ``length`` items, each of the list
    ``feature`` of several records, the documents, whose lengths a column (``by``) says.
    ``method``: "best_fit", "first_fit", or "split", which cuts all documents where a
    sequence is full. ``longer``: a document longer than a sequence comes in pieces
    ("split"), loses its end ("cut"), is left out ("drop"), or an error ("fail").
    ``window`` documents (65,536) are packed together, of a mix also ``across_parts``. A
    sequence has at most so many ``documents``. ``pad``: what fills its end, by list (0).
    ``with_``: further features, of "position_ids", "document_ids", "seq_lens",
    "cu_seqlens", "loss_mask" and "records"; ``mask_first``: loss_mask is 0 at the first
    item of each document too."""
    return given(length=length, feature=feature, by=by, method=method, longer=longer,
                 window=window, across_parts=across_parts, documents=documents, pad=pad,
                 mask_first=mask_first, **{"with": with_})


def vocabulary(from_: Path, feature: Optional[str] = None,
               min_count: Optional[int] = None,
               max_size: Optional[int] = None) -> Dict[str, Any]:
    """A ``vocabulary`` of ``lookup``: what ``penstock analyze`` has counted and written
    to the file ``from_``, the most frequent first. ``feature``: of that file (the same
    name); ``min_count`` (1), ``max_size``: of the tokens that are taken."""
    return given(feature=feature, min_count=min_count, max_size=max_size,
                  **{"from": absolute(from_)})


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


def tokenize(file: Path, max_length: int, *, longer: Optional[str] = None,
             feature: Optional[Names] = None,
             add_special_tokens: Optional[bool] = None, to: Optional[str] = None,
             type_ids: Optional[str] = None, dtype: Any = None,
             chat: Optional[Mapping[str, Any]] = None) -> Operation:
    """Text -> its tokens by Hugging Face's tokenizers, in processes of the broker
    (``pip install tokenizers``): int32 or int64 (``dtype``) [``max_length``], and
    ``NAME.length``, how many are the row's (``batch.lengths``, an attention mask).

    ``file``: a tokenizer.json (``tokenizer.save_pretrained`` writes it); ``longer``:
    "fail", or "cut" as ``truncation=True``; ``feature``: the text ("text"), or a pair;
    ``add_special_tokens`` (True); ``to``: the name of the tokens (that of the text);
    ``type_ids``: the name of a list that says of which of a pair each token is;
    ``chat``: the text is the JSON of one, ``penstock.chat(...)``."""
    return _operation("tokenize", file=absolute(file), max_length=max_length,
                      longer=longer, feature=feature,
                      add_special_tokens=add_special_tokens, to=to, type_ids=type_ids,
                      dtype=optional_dtype(dtype), chat=chat)


def chat(config: Optional[Path] = None, *, template: Optional[Path] = None,
         train_on: Optional[Sequence[str]] = None, mask: Optional[str] = None,
         labels: Optional[str] = None, roles: Optional[Mapping[str, str]] = None,
         variables: Optional[Mapping[str, Any]] = None) -> Dict[str, Any]:
    """The ``chat`` of ``tokenize``: a text is the JSON of {"role", "content"} messages,
    or an object that has them as "messages" or "conversations", and is written by the
    template of a model, as transformers' apply_chat_template (``pip install jinja2``).

    ``config``: a tokenizer_config.json, with the template and the special tokens;
    ``template``: a chat_template.jinja instead (``tokenizer.save_pretrained`` writes
    both); ``train_on``: the roles that a model is trained on (["assistant"]); ``mask``:
    the name of a list of uint8, as long as the tokens, 1 for those of these roles
    ("loss_mask"); ``labels``: the name of a list of the tokens with -100 for the others;
    ``roles``: {from: to}, other names of roles; ``variables``: of the template."""
    return given(config=None if config is None else absolute(config),
                 template=None if template is None else absolute(template),
                 train_on=None if train_on is None else list(train_on), mask=mask,
                 labels=labels, roles=None if roles is None else dict(roles),
                 variables=None if variables is None else dict(variables))


def vectorize_text(vocabulary: Union[Path, Sequence[Any], Mapping[str, Any]],
                   max_length: Optional[int] = None, *, longer: Optional[str] = None,
                   standardize: Optional[str] = None, split: Optional[str] = None,
                   ngrams: Union[int, Sequence[int], None] = None,
                   output: Optional[str] = None, idf: Optional[Path] = None,
                   feature: Optional[Names] = None) -> Operation:
    """Text -> the numbers of its words, as Keras' TextVectorization.

    ``vocabulary``: as in ``lookup``, or what get_vocabulary() gives; ``output``: "int",
    int64 [``max_length``] (output_sequence_length) and ``NAME.length``, how many are the
    row's; or "multi_hot", "count", "tf_idf", float32 [1 + words]; ``longer``: "fail" or
    "cut"; ``standardize``: "lower_and_strip_punctuation", "lower", "strip_punctuation" or
    "none"; ``split``: "whitespace", "character" or "none"; ``ngrams``: n for 1 to n words,
    or a list; ``idf``: of tf_idf, a file with a weight a line; ``feature`` ("text")."""
    return _operation("vectorize_text", vocabulary=_vocabulary(vocabulary),
                      max_length=max_length, longer=longer, standardize=standardize,
                      split=split, ngrams=ngrams, output=output,
                      idf=None if idf is None else absolute(idf), feature=feature)


def encode_bytes(offset: Optional[int] = None, begin: Optional[int] = None,
                 end: Optional[int] = None, max_length: Optional[int] = None, *,
                 longer: Optional[str] = None, dtype: Any = None,
                 feature: Optional[Names] = None) -> Operation:
    """Text -> its bytes plus ``offset`` as tokens, int32 or int64 (``dtype``)
    [``max_length``], between the tokens ``begin`` and ``end`` if they are given, and
    ``NAME.length``. As ByT5: ``offset=3, end=1``. ``max_length``: all have room if not
    given; ``longer``: "fail" or "cut"; ``feature`` ("text")."""
    return _operation("encode_bytes", offset=offset, begin=begin, end=end,
                      max_length=max_length, longer=longer,
                      dtype=optional_dtype(dtype), feature=feature)


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


def copy(features: Mapping[str, Union[str, Sequence[str]]]) -> Operation:
    """Features once more under other names, {old: new} or {old: [new, ...]}: two views of
    a picture that is decoded once, and steps on each with random numbers of their own."""
    return _operation("copy", features=features)


def keep_encoded(max_bytes: int) -> Operation:
    """Pictures and sounds that are not decoded yet, as the bytes of their files: NAME,
    uint8 [max_bytes], and NAME.length, for a decoder of yours."""
    return _operation("keep_encoded", max_bytes=max_bytes)


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


check_module(globals())
