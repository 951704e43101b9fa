"""Penstock for loops written for tf.data.

    dataset = penstock.tf.dataset("train.yaml", features=("image", "label"))
    for images, labels in dataset:
        ...
"""

from __future__ import annotations

import itertools
from typing import Any, Iterator, Optional, Sequence

import tensorflow as tf

from penstock.reader import Epoch, attach, no_epoch_left


def dataset(source: Any = None, *, features: Optional[Sequence[str]] = None,
            **options: Any) -> tf.data.Dataset:
    """Attaches, and returns a ``tf.data.Dataset``. Each iteration yields one epoch's
    batches (after a ``break``, the rest of that epoch). ``dataset.reader`` is the
    Reader.

    Keras: ``fit(dataset, epochs=n)`` iterates once per epoch and needs no
    ``steps_per_epoch``. With ``steps_per_epoch`` it keeps one iterator over all
    epochs: pass ``dataset.repeat()``, which ends with the job's last epoch.

    An iteration after the last epoch raises an error that says so (TensorFlow turns
    it into ``tf.errors.UnknownError``). A ``repeat`` after ``map`` or ``prefetch``
    causes one: put it before them.

    Batches are copied once, because tf.data may keep elements for any time. To avoid
    the copy, iterate the reader and use ``batch.tf()``. Shuffling, batching and
    mapping belong in the spec.

    Args:
      source, **options: as ``dataset`` and the options of ``penstock.attach``.
      features: names; elements are then tuples of these tensors instead of
        dictionaries of all. KeyError: no such feature.
    """
    reader = attach(source, **options)
    names = reader.element_spec.chosen(
        tuple(reader.element_spec) if features is None else features)

    def signature(name: str) -> tf.TensorSpec:
        spec = reader.element_spec[name]
        return tf.TensorSpec((None, *spec.shape), tf.as_dtype(spec.dtype), name)

    def elements(epoch: Epoch) -> Iterator[Any]:
        for batch in epoch:
            # TensorFlow keeps aligned arrays without copying and frees them late;
            # copies, so that it does not hold batches.
            copies = [batch[name].copy() for name in names]
            del batch
            yield (tuple(copies) if features is not None else
                   dict(zip(names, copies)))

    signatures: Any = {name: signature(name) for name in names}
    if features is not None:
        signatures = tuple(signatures.values())

    def of_epochs(count: Optional[int]) -> tf.data.Dataset:
        """A dataset of at most ``count`` epochs; None: all that are left."""
        def batches() -> Iterator[Any]:
            epochs = reader.epochs()
            first = next(epochs, None)
            if first is None:
                raise no_epoch_left(reader)
            for epoch in itertools.islice(itertools.chain([first], epochs), count):
                yield from elements(epoch)

        made = tf.data.Dataset.from_generator(batches, output_signature=signatures)
        made.reader = reader
        return made

    made = of_epochs(1)
    # tf.data's repeat would iterate once more after the last epoch.
    made.repeat = lambda count=None, name=None: of_epochs(
        None if count in (None, -1) else count)
    return made
