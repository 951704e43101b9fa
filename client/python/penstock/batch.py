"""A batch: named arrays over shared memory."""

from __future__ import annotations

import collections
import sys
import weakref
from collections.abc import Mapping
from typing import (TYPE_CHECKING, Any, Callable, Deque, Dict, Iterator, NamedTuple,
                    Optional, Sequence, Tuple)

import numpy as np

from penstock import _core, errors

if TYPE_CHECKING:
    import tensorflow
    import torch

    Tensors = Dict[str, torch.Tensor]


class TensorSpec(NamedTuple):
    """A feature: ``shape`` of one row, without the batch dimension, and the name of
    its ``dtype``: "uint8", "int8", "int16", "int32", "int64", "float16",
    "bfloat16", "float32", "float64" or "bool"."""

    shape: Tuple[int, ...]
    dtype: str


class Features(Dict[str, TensorSpec]):
    """The features of a job by name, in the order of its spec.

    Args:
      names: only these, and the lengths of those that are lists; None: all. KeyError
        lists the names.
    """

    def __init__(self, specs: Dict[str, TensorSpec],
                 names: Optional[Sequence[str]] = None):
        super().__init__(specs)
        self._found = {name: (spec, index)
                       for index, (name, spec) in enumerate(specs.items())}
        if names is None:
            return
        wanted = set(self.chosen(names))
        wanted.update(filter(None, map(self.length_of, names)))
        for name in specs:
            if name not in wanted:
                del self[name], self._found[name]

    def places(self) -> Iterator[Tuple[str, int]]:
        """Each name and its index among all features of the job."""
        for name, (_, index) in self._found.items():
            yield name, index

    def find(self, name: str) -> Tuple[TensorSpec, int]:
        """The feature and its index; KeyError lists the names."""
        try:
            return self._found[name]
        except KeyError:
            raise KeyError(
                f"no feature {name!r}; there are: {', '.join(self)}") from None

    def length_of(self, name: str) -> Optional[str]:
        """The feature that says how many items of a list, or bytes of a text, are a
        row's; None: its first dimension is of one size."""
        spec, _ = self.find(name)
        names = [name + ".length"]
        if spec.dtype == "uint8" and len(spec.shape) == 1:
            names += [name + "_bytes"] + (["bytes"] if name == "text" else [])
        for each in names if spec.shape else ():
            if self.get(each) == TensorSpec((), "int64"):
                return each
        return None

    def chosen(self, names: Sequence[str]) -> Tuple[str, ...]:
        """``names`` as a tuple; KeyError lists the names of the features."""
        if isinstance(names, str):
            raise TypeError(f"features: wanted names, ({names!r},), got a text")
        for name in names:
            self.find(name)
        return tuple(names)


def numpy_dtype(name: str) -> np.dtype:
    """NumPy's dtype of this name. bfloat16 needs ml_dtypes, which comes with JAX and
    TensorFlow: TypeError without it."""
    if name != "bfloat16":
        return np.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError(
            "NumPy has no bfloat16 of its own: pip install ml_dtypes, or take "
            "the batch by torch()") from None
    found: np.dtype = np.dtype(ml_dtypes.bfloat16)
    return found


def check_lists(lists: str) -> str:
    """ValueError: no way in which a batch's lists become tensors."""
    if lists not in ("bound", "padded", "nested"):
        raise ValueError("lists: wanted 'bound', 'padded' or 'nested', found "
                         f"{lists!r}")
    return lists


def device_number(device: Any) -> int:
    """CUDA's number of a GPU: of "cuda", "cuda:1", 1, a torch.device; of None, and
    without a number, of the one that is PyTorch's current one, else 0. ValueError:
    no GPU of CUDA."""
    if isinstance(device, int) and device >= 0:
        return device
    kind, _, number = str("cuda" if device is None else device).partition(":")
    if kind != "cuda" or number and not number.isdigit():
        raise ValueError(f"device: wanted 'cuda', 'cuda:1' or a number, got {device!r}")
    if number:
        return int(number)
    torch = sys.modules.get("torch")
    return torch.cuda.current_device() if (
        torch is not None and torch.cuda.is_initialized()) else 0


class Holds:
    """What a reader's batches have to do with a device: those that it reads until an
    event has passed; the GPU that all are copied to.

    Args:
      prefetch: the Reader's prefetch_to_device.
    """

    def __init__(self, prefetch: Callable[[Any], None]) -> None:
        self._waiting: Deque[Tuple[Any, Any]] = collections.deque()
        self._prefetch = weakref.WeakMethod(prefetch)
        self.device: Optional[int] = None

    def device_of(self, device: Any) -> int:
        """The GPU that batches are copied to; opens it. ValueError: it is another."""
        if self.device is None:
            prefetch = self._prefetch()
            if prefetch is None:
                raise errors.FailedPrecondition("the reader is gone: copy its batches "
                                                "to the GPU before")
            prefetch(device)
        assert self.device is not None
        if device is not None and device_number(device) != self.device:
            raise ValueError(f"device: this reader copies to cuda:{self.device}, not to "
                             f"{device}: attach another one for that")
        return self.device

    def add(self, event: Any, core: _core.Batch) -> None:
        """Holds the batch until the event has passed. TypeError: no event."""
        for name in ("query", "synchronize"):
            if not callable(getattr(event, name, None)):
                raise TypeError("hold_until: wanted a torch.cuda.Event or what has "
                                f"its query() and synchronize(), got {event!r}")
        self._waiting.append((event, core))

    def let_go(self) -> None:
        """Drops the batches whose event has passed."""
        if self._waiting:
            self._waiting = collections.deque(
                each for each in self._waiting if not each[0].query())

    def wait_for_oldest(self) -> bool:
        """Waits for the oldest event and drops its batch. False: there is none."""
        if not self._waiting:
            return False
        event, _ = self._waiting.popleft()
        event.synchronize()
        return True


class Batch(Mapping[str, np.ndarray]):
    """This rank's rows of one step: maps each feature's name to a read-only NumPy
    array ``[rows, *shape]`` over shared memory, without a copy.

    The memory belongs to this rank while the batch, or any array, tensor or view
    of it, is alive; then the broker refills it. A rank may hold ``hold`` batches
    at once (set in the spec, 3 by default). Any thread may read and drop a batch.
    After ``release`` its members raise FailedPrecondition.
    """

    __slots__ = ("_core", "_features", "_holds", "__weakref__")

    def __init__(self, core: _core.Batch, features: Features, holds: Holds):
        self._core: Optional[_core.Batch] = core
        self._features = features
        self._holds = holds

    # ---- as a mapping

    def __getitem__(self, name: str) -> np.ndarray:
        spec, index = self._features.find(name)
        array: np.ndarray = self._held().array(index, False)
        if spec.dtype == "bfloat16":
            return array.view(numpy_dtype(spec.dtype))
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._features)

    def __len__(self) -> int:
        """The number of features; ``rows`` is the number of rows."""
        return len(self._features)

    # Identity, not Mapping's equality: comparing arrays gives no single answer.
    __eq__ = object.__eq__
    __hash__ = object.__hash__

    def __repr__(self) -> str:
        if self._core is None:
            return "<penstock.Batch, released>"
        what = ", ".join(
            f"{name}: {spec.dtype}{list(self[name].shape)}"
            for name, spec in self._features.items())
        return f"<penstock.Batch {self.epoch}/{self.step} {what}>"

    # ---- lists, whose rows differ in length

    def lengths(self, name: str) -> np.ndarray:
        """``[rows]`` int64, read only: how many items of the list ``name``, or bytes of
        the text, are each row's; zeros (or what ``pad_sequence`` adds) follow them.
        KeyError: its rows are all of one length. DataLoss: these are no lengths."""
        length = self._features.length_of(name)
        if length is None:
            raise KeyError(f"{name!r} is no list: the batch has no {name}.length")
        lengths, room = self[length], self[name].shape[1]
        if lengths.min(initial=0) < 0 or lengths.max(initial=0) > room:
            raise errors.DataLoss(
                f"{length!r} has {lengths.min()} to {lengths.max()}, and {name!r} has "
                f"room for {room}: it is no length of it; rename one of them")
        return lengths

    def padded(self, name: str) -> np.ndarray:
        """``[rows, longest, *shape]``: the list without what is behind the longest row
        of this batch; a view, not a copy. KeyError: as ``lengths``."""
        return self[name][:, :self._longest(name)]

    def ragged(self, name: str) -> Tuple[np.ndarray, np.ndarray]:
        """The items of all rows one after the other, ``[items, *shape]``, a copy, and
        where each row begins and the last one ends, ``[rows + 1]`` int64. KeyError: as
        ``lengths``."""
        lengths = self.lengths(name)
        splits = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=splits[1:])
        array = self[name]
        return array[np.arange(array.shape[1]) < lengths[:, None]], splits

    def _longest(self, name: str) -> int:
        return int(self.lengths(name).max(initial=0))

    # ---- as tensors of a framework

    def torch(self, lists: str = "bound") -> "Tensors":
        """CPU tensors by name, over a private copy-on-write mapping of the batch.

        Only pages that are written in place are copied; no other process sees
        them, and they are discarded when the batch is released. For work in place
        use these, not ``torch.from_numpy(batch[name])``: PyTorch does not know
        read-only memory, and a write there kills the process (SIGSEGV).

        Args:
          lists: what is a list, or a text: "bound", as it lies there, with room for the
            longest of all rows; "padded", to the longest of this batch, a view too;
            "nested", a jagged nested tensor, for which the items are copied.

        Raises:
          ValueError: another word.
        """
        import torch

        check_lists(lists)
        return self._with_lists({name: torch.from_dlpack(self._exporter(index))
                                 for name, index in self._features.places()}, lists)

    def cuda(self, device: Any = None, lists: str = "bound") -> "Tensors":
        """Tensors by name on a GPU, ``[rows, *shape]``: as ``to_device``, for PyTorch's
        current stream.

        Work on another stream has to be waited for there before the tensors are dropped
        (``record_stream`` knows nothing of their memory, nor ``memory_allocated``).

        Args:
          lists: as for ``torch``.

        Raises:
          ValueError: another word, or another GPU.
          NotFound, ResourceExhausted, FailedPrecondition: as ``to_device``.
        """
        import torch

        check_lists(lists)
        return self._with_lists({name: torch.from_dlpack(array)
                                 for name, array in self.to_device(device).items()}, lists)

    def to_device(self, device: Any = None) -> Dict[str, Any]:
        """The batch on a GPU: objects by name for ``jax.dlpack.from_dlpack``,
        ``cupy.from_dlpack``, ``torch.from_dlpack`` and others that take ``__dlpack__``
        of a CUDA device.

        ``Reader.prefetch_to_device`` has had it copied, else it is called here. The copy
        is not waited for: the stream that a consumer names waits, and the memory is
        written again only after what that stream had to do when the last array was
        dropped. The batch may be released at once: the broker gets its memory back when
        the copy has been made. A second call makes a second copy. Any thread.

        Args:
          device: "cuda", "cuda:1", 1; None: the reader's, else the current one.

        Raises:
          ValueError: no GPU of CUDA, or another one than the reader's.
          NotFound: no driver, or no such GPU.
          ResourceExhausted: no memory on the GPU, or to be pinned.
          FailedPrecondition: the batch is released, or the reader closed.
        """
        number = self._holds.device_of(device)
        arrays = self._held().to_device(number)
        return {name: arrays[index] for name, index in self._features.places()}

    def _with_lists(self, tensors: "Tensors", lists: str) -> "Tensors":
        import torch

        if lists == "bound":
            return tensors
        of_lists = {}
        for name in self._features:
            if self._features.length_of(name) is None:
                continue
            tensor = tensors[name]
            if lists == "padded":
                of_lists[name] = tensor[:, :self._longest(name)]
            else:
                # Few operations of PyTorch take one with gaps.
                lengths = torch.from_numpy(self.lengths(name).copy()).to(tensor.device)
                used = torch.arange(tensor.shape[1], device=tensor.device) < (
                    lengths[:, None])
                of_lists[name] = torch.nested.nested_tensor_from_jagged(
                    tensor[used], torch.cat([lengths.new_zeros(1), lengths.cumsum(0)]))
        return {**tensors, **of_lists}

    def jax(self) -> Dict[str, Any]:
        """``jax.Array``s by name on the CPU, without a copy (as ``torch``);
        ``jax.device_put`` moves them to another device. Without
        ``jax_enable_x64``, float64 and int64 are copied to 32 bits.

        JAX computes asynchronously: a batch stays held until every computation
        that reads it has ended. When such computations hold all batches that the
        rank may hold, the reader waits for them."""
        import jax

        arrays = {}
        for name, index in self._features.places():
            if self._features[name].dtype in ("int64", "float64") and not (
                    jax.config.jax_enable_x64):
                arrays[name] = jax.numpy.asarray(self[name])
            else:
                arrays[name] = jax.dlpack.from_dlpack(self._exporter(index))
        return arrays

    def tf(self) -> Dict[str, "tensorflow.Tensor"]:
        """``tf.Tensor``s by name on the CPU, without a copy (as ``torch``)."""
        import tensorflow as tf

        return {name: tf.experimental.dlpack.from_dlpack(
                    self._exporter(index).__dlpack__())
                for name, index in self._features.places()}

    # ---- where it comes from

    @property
    def ids(self) -> np.ndarray:
        """``[rows]`` int64, read only: each row's record number in the dataset;
        ``penstock.PADDING_ID`` (-1) for rows that ``last: pad`` added."""
        ids: np.ndarray = self._held().ids()
        return ids

    @property
    def rows(self) -> int:
        """Rows in the batch, padding included; 0 where fewer rows than ranks were
        left."""
        return self._held().rows

    @property
    def valid_rows(self) -> int:
        """Rows that are samples; those after them are padding."""
        return self._held().valid_rows

    @property
    def global_rows(self) -> int:
        """Rows of the global batch, padding not counted: to weigh gradients. The
        same on every rank: rows that ``on_error: skip`` left out are counted."""
        return self._held().global_rows

    @property
    def epoch(self) -> int:
        """From 0."""
        return self._held().epoch

    @property
    def step(self) -> int:
        """From 0 in each epoch."""
        return self._held().step

    @property
    def part(self) -> Optional[int]:
        """The part of the source, from 0, that all its rows are of
        (``batch.by_part``); None: they may be of any."""
        part = self._held().part
        return None if part < 0 else part

    @property
    def redelivered(self) -> bool:
        """True: the batch was handed out before to a process that died with it, or
        may have been."""
        return self._held().redelivered

    @property
    def skipped(self) -> int:
        """Batches that this consumer missed just before it (``lag="skip"``)."""
        return self._held().skipped

    @property
    def left_out(self) -> int:
        """Rows that ``on_error: skip`` left out of it; 65,535: so many or more."""
        return self._held().left_out

    # ---- its end

    def release(self) -> None:
        """Releases the batch before its name goes out of scope; no effect the
        second time. Its arrays and tensors stay valid and hold its memory until
        they are gone too."""
        self._core = None

    def hold_until(self, event: Any) -> None:
        """Holds the memory until ``event`` has passed, even when the batch is
        dropped earlier: for asynchronous copies to a device. ``event``: a recorded
        ``torch.cuda.Event``, or any object with its ``query()`` and
        ``synchronize()``; else TypeError."""
        self._holds.add(event, self._held())

    def __enter__(self) -> "Batch":
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def _held(self) -> _core.Batch:
        if self._core is None:
            raise errors.FailedPrecondition("this batch was released")
        return self._core

    def _exporter(self, index: int) -> Any:
        """An object with __dlpack__, writable."""
        return self._held().array(index, True)
