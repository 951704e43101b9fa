"""A producer: a process that makes rows instead of reading them.

    spec = {"image": penstock.TensorSpec((224, 224, 3), "uint8"),
            "label": penstock.TensorSpec((), "int64")}

    with penstock.producer("frames", spec, batch=64) as out:
        for images, labels in simulate():
            out.put({"image": images, "label": labels})

The ranks attach to the same job with a stream of the same features:

    dataset = penstock.Dataset.stream(spec).batch(256)
    with penstock.attach(dataset, job="frames") as reader: ...
"""

from __future__ import annotations

import contextlib
import operator
from typing import Any, Dict, Iterator, Mapping, Optional

import numpy as np

from penstock import _core
from penstock.batch import TensorSpec, numpy_dtype
from penstock.errors import Error, FailedPrecondition, InvalidArgument
from penstock.reader import index, path, reconnect_option, seconds, text
from penstock.spec_values import features_of


class Producer:
    """One producer of a job; made by ``penstock.producer``. One thread at a time uses
    it. A forked child cannot use its parent's (FailedPrecondition). Calls also raise
    DeadlineExceeded (``timeout_s``) and Unavailable (``reconnect_s``)."""

    def __init__(self, core: _core.Producer, features: Mapping[str, TensorSpec],
                 batch: int):
        self._core = core
        self._batch = batch
        self._features = dict(features)
        self._in_slot = False
        self._finished = False

    @property
    def next_row(self) -> int:
        """The stream's row number that was next when this producer opened: 0 in a
        new job; after a resume, the row to go on with."""
        return self._core.next_row

    def put(self, rows: Mapping[str, Any]) -> None:
        """Copies rows in: ``{name: [n, *shape]}`` for every feature, any n, put in
        pieces of at most ``batch`` rows. Waits while the ranks are behind. A list
        (``name`` with ``name.length``, as ``Batch.lengths`` has it) is a sequence of n
        arrays ``[at most shape[0], *shape[1:]]``, unless ``name.length`` is given too.

        Raises ValueError, and puts nothing, when a name, shape or kind of dtype is
        not the feature's, a value does not fit into its dtype, or the arrays differ
        in n; ``Aborted`` when the job's ranks have left."""
        rows = {**rows, **self._lists_of(rows)}
        arrays = {name: self._checked(name, rows) for name in self._features}
        if len(rows) > len(arrays):
            raise ValueError("no feature of the stream: "
                             + ", ".join(map(str, set(rows) - set(arrays))))
        lengths = {name: len(array) for name, array in arrays.items()}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"different numbers of rows: {lengths}")
        count = next(iter(lengths.values()))
        for begin in range(0, count, self._batch):
            end = min(count, begin + self._batch)
            with self.slot(end - begin) as slot:
                for name, array in arrays.items():
                    slot[name][...] = array[begin:end]

    def _lists_of(self, rows: Mapping[str, Any]) -> Dict[str, np.ndarray]:
        """Of each list its rows in their room, zeros behind them, and their lengths."""
        made = {}
        for name, spec in self._features.items():
            length = name + ".length"
            if length not in self._features or length in rows or name not in rows:
                continue
            room, shape = spec.shape[0], spec.shape[1:]
            items = [_array(name, row) for row in rows[name]]
            items = [row if row.size else row.reshape(0, *shape) for row in items]
            for number, row in enumerate(items):
                if row.ndim == 0 or row.shape[1:] != shape or len(row) > room:
                    raise ValueError(
                        f"feature {name!r}, row {number}: an array of shape {row.shape}, "
                        "wanted [" + ", ".join([f"at most {room}", *map(str, shape)]) + "]")
            dtypes = {row.dtype for row in items if row.size}
            array = np.zeros((len(items), *spec.shape), np.result_type(*dtypes) if dtypes
                             else numpy_dtype(spec.dtype))
            for place, row in zip(array, items):
                place[:len(row)] = row
            made[name] = array
            made[length] = np.array([len(row) for row in items], np.int64)
        return made

    def _checked(self, name: str, rows: Mapping[str, Any]) -> np.ndarray:
        if name not in rows:
            raise ValueError(f"no rows of feature {name!r}")
        spec = self._features[name]
        wanted = numpy_dtype(spec.dtype)
        if isinstance(rows[name], np.ma.MaskedArray):
            raise ValueError(f"feature {name!r}: a masked array; fill it, or take "
                             "its `.data`")
        array = _array(name, rows[name])
        if array.ndim == 0 or array.shape[1:] != spec.shape:
            raise ValueError(f"feature {name!r}: an array of shape "
                             f"{array.shape}, wanted [rows"
                             + "".join(f", {n}" for n in spec.shape) + "]")
        of = self._features.get(name.removesuffix(".length"))
        if of not in (None, spec):
            wrong = np.flatnonzero((array < 0) | (array > of.shape[0]))
            if wrong.size:
                raise ValueError(f"feature {name!r}, row {wrong[0]}: a length of "
                                 f"{array[wrong[0]]}, wanted 0 to {of.shape[0]}")
        # A safe cast needs no check of the values.
        if np.can_cast(array.dtype, wanted, "safe"):
            return array
        return _fitting(name, array, wanted)

    @contextlib.contextmanager
    def slot(self, rows: Optional[int] = None
             ) -> Iterator[Dict[str, np.ndarray]]:
        """A context of writable arrays ``{name: [rows, *shape]}`` (``rows``: 1 to
        ``batch``, the default) in the memory that the broker reads. Waits while the
        ranks are behind. The end of the block puts the rows; an exception discards
        them. Do not write to views of the arrays after the block: the broker may be
        reading them. A second slot, or a ``put``, within the block raises
        FailedPrecondition."""
        rows = self._batch if rows is None else operator.index(rows)
        if not 0 < rows <= self._batch:
            raise InvalidArgument(f"a slot of {rows} rows: 1 to {self._batch}, "
                                  "the producer's batch")
        if self._in_slot:
            raise FailedPrecondition(
                "a slot of this producer is open: end its block first")
        self._core.reserve(rows)
        arrays = {}
        for index, (name, spec) in enumerate(self._features.items()):
            array = self._core.array(index, rows)
            if spec.dtype == "bfloat16":
                array = array.view(numpy_dtype(spec.dtype))
            arrays[name] = array
        self._in_slot = True
        try:
            yield arrays
        finally:
            self._in_slot = False
            for array in arrays.values():
                array.flags.writeable = False
        self._core.put(rows)

    def finish(self) -> None:
        """Ends this producer's rows; waits until the broker has recorded them all.
        The end of a ``with`` block calls it. No effect the second time."""
        if not self._finished:
            self._core.finish()
            self._finished = True

    def fail(self, why: str) -> None:
        """Fails the job: its ranks get ``why``. An exception that leaves a ``with``
        block calls it."""
        self._core.fail(why)

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is None:
            self.finish()
        else:
            # The exception being raised says more than a failed fail().
            with contextlib.suppress(Error):
                self.fail(f"{kind.__name__}: {error}")


def _array(name: str, values: Any) -> np.ndarray:
    try:
        return np.asarray(values)
    except ValueError:  # NumPy's names no feature
        raise ValueError(
            f"feature {name!r}: nested lists that differ in length are no array; rows that "
            f"do have a feature '{name}.length', which is then left out of `put`") from None


def _fitting(name: str, array: np.ndarray, wanted: np.dtype) -> np.ndarray:
    """The array, or its cast to ``wanted``. ValueError names the first value that
    ``wanted`` cannot represent."""

    def refused(unfit: np.ndarray, why: str) -> ValueError:
        first = np.unravel_index(int(np.argmax(unfit)), array.shape)
        return ValueError(f"feature {name!r}: row {first[0]} has {array[first]}, "
                          f"which does not fit into {wanted}: {why}")

    if wanted.kind in "iub":
        least, most = ((0, 1) if wanted.kind == "b" else
                       (int(np.iinfo(wanted).min), int(np.iinfo(wanted).max)))
        why = f"wanted integers from {least} to {most}"
        if array.dtype.kind in "iu":
            if array.size and not (least <= int(array.min())
                                   and int(array.max()) <= most):
                raise refused((array < least) | (array > most), why)
            return array
        if array.dtype.kind == "f":
            exact = array.astype(np.float64)
            whole = (exact >= least) & (exact < most + 1) & (exact == np.floor(exact))
            if not whole.all():
                raise refused(~whole, why)
    elif np.can_cast(array.dtype, wanted, "same_kind"):
        with np.errstate(over="ignore"):
            cast = array.astype(wanted)
        # Refuse values that only the cast made infinite.
        infinite = np.isinf(cast)
        if infinite.any() and (infinite := infinite & ~np.isinf(array)).any():
            raise refused(infinite, "it would become infinite")
        return cast
    raise ValueError(f"feature {name!r}: {array.dtype} does not fit into {wanted}: "
                     "`.astype` it if that is what it means")


def _row_of(name: str, spec: Mapping[str, Any]) -> TensorSpec:
    for key in ("dtype", "shape"):
        if key not in spec:
            raise InvalidArgument(f"feature {name!r} has no {key!r}")
    shape = tuple(index(f"feature {name!r}: shape", size, 1) for size in spec["shape"])
    return TensorSpec(shape, spec["dtype"])


def producer(job: Optional[str] = None,
             element_spec: Optional[Mapping[str, Any]] = None, *,
             batch: int = 1, dataset: Optional[str] = None,
             socket: Optional[str] = None, timeout_s: float = 0,
             reconnect_s: Optional[float] = None) -> Producer:
    """Opens a producer of a job whose dataset is a ``stream``; waits until a rank has
    attached to it.

    Several producers may feed one job, come and go at any time, and be killed: rows
    that were put are delivered exactly once, rows not yet put are discarded. When the
    broker dies, every call waits for it to come back and goes on. Rows come in the
    order of the puts, without shuffle or seek, so a job resumes only as far as its
    producers can continue (``next_row``). The stream is over when all of its
    producers have finished.

    Args:
      job: its name. None: PENSTOCK_JOB, the launcher's, else "default".
      element_spec: the stream's features, ``{name: TensorSpec(shape, dtype)}`` or
        ``{name: {"dtype": ..., "shape": ...}}`` of one row.
      batch: most rows of one put.
      dataset: its name, where several jobs have that job name.
      socket: as in ``attach``.
      timeout_s: limit of every wait; 0: none. Then DeadlineExceeded.
      reconnect_s: for a dead broker to come back (60); 0: do not wait. Then
        Unavailable.

    Raises:
      InvalidArgument: the job wants other features.
      FailedPrecondition: its source is not a stream, or the stream is over.
    """
    batch = index("batch", batch, 1)
    features = {text("element_spec", name): _row_of(name, spec)
                for name, spec in features_of(element_spec or {}).items()}
    core = _core.Producer(
        [(name, spec.dtype, list(spec.shape))
         for name, spec in features.items()],
        batch, text("job", job), text("dataset", dataset),
        path("socket", socket), seconds("timeout_s", timeout_s),
        reconnect_option(reconnect_s))
    return Producer(core, features, batch)
