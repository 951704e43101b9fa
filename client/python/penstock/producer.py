"""The other end: a process that makes rows instead of reading them.

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
from penstock.dataset import features_of
from penstock.errors import Error, FailedPrecondition, InvalidArgument
from penstock.reader import index, path, reconnect_option, seconds, text


class Producer:
    """One producer of a job; made by ``penstock.producer``. Used by one thread at
    a time; a forked child cannot use its parent's."""

    def __init__(self, core: _core.Producer, features: Mapping[str, TensorSpec],
                 batch: int):
        self._core = core
        self._batch = batch
        self._features = dict(features)
        self._in_slot = False
        self._finished = False

    @property
    def next_row(self) -> int:
        """The number, in the stream, of the row that was next when this producer
        came: 0 in a new job; after a resume, where to go on."""
        return self._core.next_row

    def put(self, rows: Mapping[str, Any]) -> None:
        """Copies rows in: ``{name: [n, ...]}`` for every feature, any n, in pieces
        of ``batch`` rows at most. Waits while the ranks are behind. ValueError,
        and nothing is put: another name, shape or kind of dtype than the
        features', a value that does not fit into its dtype, or arrays of
        different n. Raises ``Aborted`` when the job's ranks have left."""
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

    def _checked(self, name: str, rows: Mapping[str, Any]) -> np.ndarray:
        if name not in rows:
            raise ValueError(f"no rows of feature {name!r}")
        spec = self._features[name]
        wanted = numpy_dtype(spec.dtype)
        if isinstance(rows[name], np.ma.MaskedArray):
            raise ValueError(f"feature {name!r}: a masked array; fill it, or take "
                             "its `.data`")
        array = np.asarray(rows[name])
        if array.ndim == 0 or array.shape[1:] != spec.shape:
            raise ValueError(f"feature {name!r}: an array of shape "
                             f"{array.shape}, wanted [rows"
                             + "".join(f", {n}" for n in spec.shape) + "]")
        # Equal dtypes, and those that hold all values of the other, are not
        # looked at.
        if np.can_cast(array.dtype, wanted, "safe"):
            return array
        return _fitting(name, array, wanted)

    @contextlib.contextmanager
    def slot(self, rows: Optional[int] = None
             ) -> Iterator[Dict[str, np.ndarray]]:
        """Room for ``rows`` rows (``batch``), to be written where the broker reads
        them: ``{name: [rows, ...]}``. They are put when the block ends, and
        discarded if it raises. Waits while the ranks are behind. The arrays
        can be written until then; views of them must not be written later: the
        rows may be on their way. One slot at a time, and no ``put`` in it:
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
        """It has put all of its rows. Done by the end of a ``with`` block. Again:
        nothing."""
        if not self._finished:
            self._core.finish()
            self._finished = True

    def fail(self, why: str) -> None:
        """It cannot go on: the job fails, and ``why`` is what its ranks get. Done
        by an exception that leaves a ``with`` block."""
        self._core.fail(why)

    def __enter__(self) -> "Producer":
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        if kind is None:
            self.finish()
        else:
            # What is raised already says more than that it was too late.
            with contextlib.suppress(Error):
                self.fail(f"{kind.__name__}: {error}")


def _fitting(name: str, array: np.ndarray, wanted: np.dtype) -> np.ndarray:
    """The array, or one that ``wanted`` has its values in already. ValueError
    names the first that it cannot have."""

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
        # Infinite in the cast alone. One that is infinite as it came stays so.
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
    """Feeds a job whose dataset is a ``stream``; waits until a rank has attached
    to it.

    Several producers may feed one job, come and go at any time, and be killed:
    what was put is delivered exactly once, what was only written is discarded.
    When the broker dies, every call waits for it to come back and goes on. Rows
    come in the order in which they were put: no shuffle, no way back, and a
    job resumes only as far as its producers can go on where it was
    (``next_row``). The stream is over when all of its producers have finished.

    Args:
      job: its name; None: PENSTOCK_JOB, the launcher's, "default".
      element_spec: ``{name: TensorSpec(shape, dtype)}`` of one row, as the
        stream's features; also ``{"dtype": ..., "shape": ...}``.
      batch: rows of one put, at most.
      dataset: where several jobs have that name.
      socket: as of ``attach``.
      timeout_s: of every wait; 0: none. DeadlineExceeded.
      reconnect_s: for the broker to come back when it died (60 s); 0: do not
        wait. Unavailable.

    Raises InvalidArgument when the job wants other features, FailedPrecondition
    when its source is not a stream or the stream is over.
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
