"""Penstock: one data loader per host feeds all trainer processes.

    import penstock

    with penstock.attach("train.yaml") as reader:   # rank from the launcher
        for epoch in reader.epochs():
            for batch in epoch:
                images, labels = batch["image"], batch["label"]

Also here: ``penstock.Dataset`` (a spec written in Python), ``penstock.broker`` (a
private broker), ``penstock.producer`` (feeds rows that a process makes); and the
modules ``penstock.torch`` (a DataLoader), ``penstock.tf`` (a tf.data.Dataset),
``penstock.parallel`` (ranks of several processes), ``penstock.packing`` (packed batches)
and ``penstock.ray`` (makers in a cluster), which are imported when they are first used.

Errors are subclasses of ``penstock.Error``; times are seconds; one thread at a
time uses a Reader or a Producer.
"""

from typing import TYPE_CHECKING

from penstock._core import PADDING_ID
from penstock._core import version as __version__
from penstock.batch import Batch, Features, TensorSpec
from penstock.dataset import Dataset
from penstock.errors import (Aborted, AlreadyExists, Cancelled, DataLoss,
                             DeadlineExceeded, Error, FailedPrecondition,
                             Internal, InvalidArgument, NotFound,
                             PermissionDenied, ResourceExhausted, Unavailable)
from penstock.operations import (Operation, affine, at, aug_mix, autocontrast, blur,
                                 buckets, bucketize, cast, center, center_pixels, chat, clip,
                                 color_jitter, concatenate, convert_boxes, copy, crop,
                                 cutmix, decode_audio, decode_image, drop,
                                 encode_bytes, equalize, fit, flip, gain, gpt_config,
                                 grayscale, hash, invert, keep_encoded, label_smoothing, lookup,
                                 mask_spectrogram, masks, mel_spectrogram, mixup,
                                 noise, normalize, one_hot, pack, pad, pad_sequence,
                                 parse_json,
                                 perspective, plugin, posterize, python, rand_augment,
                                 random_erasing, random_pixels, random_resized, rename,
                                 rescale, reshape, resize, rotate, sanitize_boxes,
                                 select, sharpness, solarize, timm_rand_augment,
                                 tokenize, trivial_augment, vectorize_text, vocabulary)
from penstock.private_broker import Broker, broker
from penstock.producer import Producer, producer
from penstock.reader import (EndOfData, EndOfEpoch, Epoch, InputContext, Reader,
                             attach)
from penstock.replicas import Replicas, global_arrays, replicas

if TYPE_CHECKING:
    from penstock import packing, parallel, ray, tf, torch
else:
    def __getattr__(name):
        # They are slow to import, or need what is not installed.
        if name not in ("packing", "parallel", "ray", "tf", "torch"):
            raise AttributeError(f"module 'penstock' has no attribute {name!r}")
        import importlib
        return importlib.import_module(f"penstock.{name}")

__all__ = [
    "Aborted", "AlreadyExists", "Batch", "Broker", "Cancelled", "DataLoss",
    "Dataset", "DeadlineExceeded", "EndOfData", "EndOfEpoch", "Epoch", "Error",
    "FailedPrecondition", "Features", "InputContext", "Internal", "InvalidArgument",
    "NotFound",
    "Operation", "PADDING_ID", "PermissionDenied", "Producer", "Reader", "Replicas",
    "ResourceExhausted", "TensorSpec", "Unavailable", "__version__", "affine", "at",
    "attach", "aug_mix", "autocontrast", "blur", "broker", "buckets", "bucketize", "cast",
    "center", "center_pixels", "chat", "clip", "color_jitter", "concatenate", "convert_boxes",
    "copy", "crop", "cutmix", "decode_audio", "decode_image", "drop", "encode_bytes", "equalize",
    "fit", "flip", "gain", "global_arrays", "gpt_config", "grayscale", "hash", "invert",
    "keep_encoded", "label_smoothing", "lookup", "mask_spectrogram", "masks",
    "mel_spectrogram", "mixup", "noise", "normalize", "one_hot", "pack", "pad",
    "pad_sequence",
    "parse_json", "perspective", "plugin",
    "posterize", "producer", "python", "rand_augment", "random_erasing", "random_pixels",
    "random_resized", "rename", "replicas", "rescale", "reshape", "resize", "rotate",
    "sanitize_boxes", "select", "sharpness", "solarize", "timm_rand_augment", "tokenize",
    "trivial_augment", "vectorize_text", "vocabulary",
]
