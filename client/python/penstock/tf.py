"""Penstock for loops that are written for tf.data.

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
    """A ``tf.data.Dataset`` of one epoch's batches per iteration (of what is left
    of it, after a ``break``), with ``element_spec``. ``dataset.reader`` is the
    Reader.

    Keras: ``fit(dataset, epochs=n)`` iterates once per epoch and needs no
    ``steps_per_epoch``. With it, it keeps one iterator over all epochs: give it
    ``dataset.repeat()``, which goes on as long as the job has epochs, and then
    ends.

    Iterated again after the last epoch it is an error that says so (TensorFlow
    wraps what is raised here: ``tf.errors.UnknownError``). A ``repeat`` that
    comes after ``map`` or ``prefetch`` does just that: put it before them.

    Batches are copied once: tf.data keeps elements for as long as it likes.
    Where that counts, iterate the reader and take ``batch.tf()``. Shuffling,
    batching and mapping belong into the spec.

    Args:
      source, **options: as ``dataset`` and the options of ``penstock.attach``.
      features: names; elements are then tuples of these tensors instead of
        dictionaries.
    """
    reader = attach(source, **options)
    names = reader.element_spec.chosen(
        tuple(reader.element_spec) if features is None else features)

    def signature(name: str) -> tf.TensorSpec:
        spec = reader.element_spec[name]
        return tf.TensorSpec((None, *spec.shape), tf.as_dtype(spec.dtype), name)

    def elements(epoch: Epoch) -> Iterator[Any]:
        for batch in epoch:
            # TensorFlow takes over arrays that are aligned and lets go of them
            # when it comes to it: copies, or it holds the batches.
            copies = [batch[name].copy() for name in names]
            del batch
            yield (tuple(copies) if features is not None else
                   dict(zip(names, copies)))

    signatures: Any = {name: signature(name) for name in names}
    if features is not None:
        signatures = tuple(signatures.values())

    def of_epochs(count: Optional[int]) -> tf.data.Dataset:
        """Of as many at most, None: of all that are left."""
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
    # tf.data's own would iterate it once more after the last epoch.
    made.repeat = lambda count=None, name=None: of_epochs(
        None if count in (None, -1) else count)
    return made
