"""Penstock for loops written for tf.data and tf.distribute.

    dataset = penstock.tf.dataset("train.yaml", features=("image", "label"))
    for images, labels in dataset:
        ...

    data = penstock.tf.distribute(strategy, "train.yaml", features=("image", "label"))
    for images, labels in data:  # of all replicas
        strategy.run(train_step, args=(images, labels))
"""

from __future__ import annotations

import itertools
from typing import Any, Iterator, Optional, Sequence

import numpy as np
import tensorflow as tf

from penstock import _core
from penstock.batch import Batch
from penstock.reader import Epoch, attach, no_epoch_left
from penstock.replicas import Replicas, replicas


def dataset(source: Any = None, *, features: Optional[Sequence[str]] = None,
            lists: str = "bound", **options: Any) -> tf.data.Dataset:
    """Attaches, and returns a ``tf.data.Dataset``. Each iteration yields one epoch's
    batches (after a ``break``, the rest of that epoch). ``dataset.reader`` is the
    Reader, which ``dataset.close()`` closes.

    Keras: ``fit(dataset, epochs=n)`` iterates once per epoch and needs no
    ``steps_per_epoch``. With ``steps_per_epoch`` it keeps one iterator over all
    epochs: pass ``dataset.repeat()``, which ends with the job's last epoch.

    An iteration after the last epoch raises an error that says so (TensorFlow turns
    it into ``tf.errors.UnknownError``). A ``repeat`` after ``map`` or ``prefetch``
    causes one: put it before them.

    Tensors lie over the batches' memory. A pipeline that keeps more batches than a
    rank may hold (``prefetch``, ``shuffle``, a list) gets copies of the others;
    ``.hold(n)`` of the dataset spares them. Shuffling, batching and mapping belong
    in the spec. ``dataset.element_spec`` is the input_signature of a
    tf.function that takes its elements.

    Args:
      source, **options: as ``dataset`` and the options of ``penstock.attach``.
      features: names; elements are then tuples of these tensors instead of
        dictionaries of all. KeyError: no such feature.
      lists: features whose rows differ in length, and texts: "bound", with room for
        the longest of all rows; "padded", to the longest of the batch; "ragged",
        ``tf.RaggedTensor``s, which are copies. ValueError: another word.
    """
    if lists not in ("bound", "padded", "ragged"):
        raise ValueError("lists: wanted 'bound', 'padded' or 'ragged', found "
                         f"{lists!r}")
    reader = attach(source, **options)
    names = reader.element_spec.chosen(
        tuple(reader.element_spec) if features is None else features)

    def is_list(name: str) -> bool:
        return lists != "bound" and reader.element_spec.length_of(name) is not None

    def signature(name: str) -> Any:
        spec = reader.element_spec[name]
        dtype = tf.as_dtype(spec.dtype)
        if not is_list(name):
            return tf.TensorSpec((None, *spec.shape), dtype, name)
        shape = (None, None, *spec.shape[1:])
        return (tf.TensorSpec(shape, dtype, name) if lists == "padded" else
                tf.RaggedTensorSpec(shape, dtype, ragged_rank=1))

    def of_list(batch: Batch, name: str) -> Any:
        if lists == "padded":
            return batch.padded(name)
        return tf.RaggedTensor.from_row_splits(*batch.ragged(name), validate=False)

    def elements(epoch: Epoch) -> Iterator[Any]:
        for batch in epoch:
            # TensorFlow keeps aligned arrays without a copy, as long as it likes: what
            # it keeps longer than a rank may gets one.
            arrays = [of_list(batch, name) if is_list(name) else batch[name]
                      for name in names]
            del batch
            stats = reader.stats()
            if stats["held"] >= stats["hold_max"]:
                arrays = [array.copy() if isinstance(array, np.ndarray) else array
                          for array in arrays]
            yield (tuple(arrays) if features is not None else
                   dict(zip(names, arrays)))
            del arrays

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
            left = count
            for epoch in itertools.islice(itertools.chain([first], epochs), count):
                yield from elements(epoch)
                left = None if left is None else left - 1
            if left:
                raise no_epoch_left(reader)

        made = tf.data.Dataset.from_generator(batches, output_signature=signatures)
        made.reader = reader
        made.close = reader.close
        return made

    made = of_epochs(1)
    # tf.data's repeat would iterate once more after the last epoch.
    made.repeat = lambda count=None, name=None: of_epochs(
        None if count in (None, -1) else count)
    return made


class Distributed:
    """An iterable of an epoch's steps (after a ``break``, the rest of that epoch): the
    batches of all replicas of a strategy, as ``strategy.run`` takes them; made by
    ``penstock.tf.distribute``."""

    def __init__(self, strategy: tf.distribute.Strategy, of_process: Replicas,
                 features: Optional[Sequence[str]]):
        self.replicas = of_process
        self._strategy = strategy
        self._features = features
        spec = of_process.readers[0].element_spec
        self._names = spec.chosen(tuple(spec) if features is None else features)

    def __len__(self) -> int:
        """Steps of an epoch."""
        return len(self.replicas)

    def __iter__(self) -> Iterator[Any]:
        first = self.replicas.readers[0].rank
        for batches in self.replicas:
            elements = [self._element(batch) for batch in batches]
            del batches
            yield self._strategy.experimental_distribute_values_from_function(
                lambda context: elements[context.replica_id_in_sync_group - first])
            del elements

    def _element(self, batch: Batch) -> Any:
        """Tensors over the batch's memory, which they hold."""
        tensors = batch.tf()
        if self._features is None:
            return {name: tensors[name] for name in self._names}
        return tuple(tensors[name] for name in self._names)

    def close(self) -> None:
        """As ``Reader.close``."""
        self.replicas.close()


def distribute(strategy: tf.distribute.Strategy, source: Any = None, *,
               features: Optional[Sequence[str]] = None, **options: Any) -> Distributed:
    """What ``strategy.experimental_distribute_dataset`` gives, without a copy: each
    replica is a rank, so all have equally many steps and share no row.

    Args:
      strategy: one whose replicas are in the processes that call this
        (MirroredStrategy, MultiWorkerMirroredStrategy, OneDeviceStrategy).
      source, **options: as of ``penstock.replicas``.
      features: as of ``dataset``.
    """
    count = strategy.num_replicas_in_sync
    resolver = getattr(strategy, "cluster_resolver", None)
    if resolver is not None and resolver.cluster_spec().as_dict():  # of all workers
        count //= options.get("processes") or _core.launch()[1]
    return Distributed(strategy, replicas(source, count, **options), features)
