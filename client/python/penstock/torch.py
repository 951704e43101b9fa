"""Penstock for loops written for torch.utils.data.DataLoader.

    loader = penstock.torch.DataLoader("train.yaml", features=("image", "label"))
    for epoch in range(loader.epoch, loader.epoch_count):
        for images, labels in loader:
            ...

    loader = penstock.torch.DataLoader(my_dataset, batch_size=64, shuffle=True)
    for epoch in range(90):
        for images, labels in loader:
            ...
"""

from __future__ import annotations

import base64
import collections
import contextlib
import copy
import functools
import inspect
import json
import os
import socket as sockets
import struct
import sys
import warnings
import weakref
import zlib
from typing import (Any, Callable, ContextManager, Dict, Iterator, List, Optional,
                    Sequence, Set, Tuple, Union)

import torch
from torch import distributed
from torch.utils import data

from penstock import _core, errors, map_style
from penstock.batch import Batch
from penstock.dataset import Dataset
from penstock.reader import (Epoch, Reader, State, attach, no_epoch_left,
                             state_text)

# Arguments of PyTorch's DataLoader, and where a spec has them instead.
_ELSEWHERE = {
    "batch_size": "set it in the dataset: .batch(per_rank=...), or .batch(size) of "
                  "all ranks",
    "drop_last": "set it in the dataset: .batch(..., last=...)",
    "shuffle": "set it in the dataset: .shuffle(seed=...)",
    "sampler": "every rank gets its part of each batch (delivery=)",
    "collate_fn": "rows come as batches; .map() changes rows",
    "num_workers": "the broker's workers serve all ranks",
    "prefetch_factor": "set it in the dataset: .prefetch(...)",
    "pin_memory": "device= copies by way of pinned memory",
    "timeout": "timeout_s=",
    "seed": "set it in the dataset: .shuffle(seed=...)",
    "max_bytes": "it is for datasets of Python",
    "on_error": "set it in the dataset: .on_error(...)",
}
for _name in ("persistent_workers", "multiprocessing_context", "worker_init_fn",
              "in_order", "pin_memory_device", "snapshot_every_n_steps"):
    _ELSEWHERE[_name] = _ELSEWHERE["num_workers"]
_ELSEWHERE["batch_sampler"] = _ELSEWHERE["generator"] = _ELSEWHERE["sampler"]

_UNSET: Any = object()

_FIXED = ("dataset", "batch_size", "sampler", "drop_last")

# The loaders of map-style datasets in this process, by what names them.
_numbers: Dict[str, int] = collections.Counter()
_told: Set[str] = set()


class DataLoader(data.IterableDataset):  # type: ignore[misc]
    """An iterable of an epoch's batches as tensors ``[rows, *shape]``.

    Of a spec: each ``for`` takes the next epoch (after a ``break``, the rest of that
    epoch). After the last epoch, the first if the dataset sets no number
    (``.repeat(n)``, ``epochs:``), it raises FailedPrecondition.

    Of a map-style dataset of Python (``__len__``, ``__getitem__``): as PyTorch's.
    Each ``for`` is an epoch, also after a ``break``. Batches are those of PyTorch:
    processes of the broker make and collate them, once for all ranks of this host;
    every rank gets its part of each global batch of ``batch_size`` rows a rank. It
    attaches at its first use, so that it may be made before the ranks are known.

    Of an ``IterableDataset``: likewise, except that ``num_workers`` processes (0: one,
    without a worker's info) iterate over it in turn, and rank r of N gets batches r,
    r + N, .... The ranks have equally many steps, the last of which may be of no rows.
    A state has the dataset's own, if it keeps one (``state_dict``,
    ``load_state_dict``); else its batches before are passed over.

    Rank and number of ranks are those of ``attach``, else of ``torch.distributed``.
    Where a loop begins elsewhere than the last one ended (after a ``break``, at a
    state), all ranks meet: in ``torch.distributed.barrier``, else they have to leave
    the loop together. Of two loops over one loader at once the newer is the loader's,
    for its state; the older goes on by a job of its own (of a spec it raises
    FailedPrecondition).

    It is no ``torch.utils.data.DataLoader``: packages that divide or rebuild those
    leave it as it is. For code that takes nothing else it is an iterable dataset of
    batches: ``torch.utils.data.DataLoader(loader, batch_size=None)``.

    Args:
      dataset: a spec, as ``penstock.attach`` takes it, or a map-style or iterable
        dataset, which cloudpickle pickles for this program's own broker (``penstock run``,
        ``penstock.broker()``, else the first loader of this host starts one).
      batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn,
        pin_memory, drop_last, timeout, worker_init_fn, multiprocessing_context,
        generator, prefetch_factor, persistent_workers, pin_memory_device, in_order:
        of datasets of Python, as in PyTorch, and snapshot_every_n_steps, as in
        torchdata's StatefulDataLoader, except:
        sampler: asked for the indices of each epoch, which the ranks share; a
          DistributedSampler says whether to shuffle, by ``set_epoch`` the epoch, and
          unshuffled with ``drop_last`` how many rows.
        num_workers: how many processes make batches; 0: one per processor.
        collate_fn: called in such a process.
        generator: its ``initial_seed()`` is the seed.
        multiprocessing_context, prefetch_factor, persistent_workers,
          pin_memory_device, in_order, snapshot_every_n_steps (a state is of its
          step): mean nothing here, said once.
      seed: of the order and of ``random``, ``numpy.random`` and ``torch`` in the
        dataset: each sample of an epoch has its own. 0.
      max_bytes: the most that a batch may have. None: 256 MiB, or 32 times the
        first sample's.
      on_error: of a sample that raises: "fail", "skip" or "substitute" (by the
        next one of its batch).
      features: of a spec: names; batches are then tuples of these tensors instead of
        dictionaries of all. KeyError: no such feature.
      device: None or "cpu": tensors over the batch's memory, which is held while one
        of them is alive (``Batch.torch``). Else copies on this device. A copy to a
        CUDA device goes through pinned memory, asynchronously on the current stream,
        and the batch is free at once.
      **options: as ``penstock.attach``.

    Raises:
      TypeError: an argument of the other kind of dataset, or an object that cannot
        be pickled, or is a datapipe or neither map-style nor iterable.
      ValueError: an argument that PyTorch refuses, a batch of more than max_bytes.
      What the dataset raises, as its own type.
    """

    def __init__(self, dataset: Any = None,
                 batch_size: Optional[int] = _UNSET,
                 shuffle: Optional[bool] = None,
                 sampler: Any = None,
                 batch_sampler: Any = None,
                 num_workers: Optional[int] = None,
                 collate_fn: Optional[Callable[[List[Any]], Any]] = None,
                 pin_memory: Optional[bool] = None,
                 drop_last: Optional[bool] = None,
                 timeout: Optional[float] = None,
                 worker_init_fn: Optional[Callable[[int], None]] = None,
                 multiprocessing_context: Any = None,
                 generator: Optional[torch.Generator] = None,
                 *,
                 prefetch_factor: Optional[int] = None,
                 persistent_workers: Optional[bool] = None,
                 pin_memory_device: Optional[str] = None,
                 in_order: Optional[bool] = None,
                 snapshot_every_n_steps: Optional[int] = None,
                 seed: Optional[int] = None,
                 max_bytes: Optional[int] = None,
                 on_error: Optional[str] = None,
                 features: Optional[Sequence[str]] = None,
                 device: Union[str, torch.device, None] = None,
                 _name: Optional[str] = None,
                 **options: Any):
        unknown = set(options) - set(inspect.signature(attach).parameters)
        if unknown:
            raise TypeError("penstock.torch.DataLoader has no argument "
                            f"{sorted(unknown)[0]!r}")
        given = {name: value for name, value in dict(
            shuffle=shuffle, sampler=sampler, batch_sampler=batch_sampler,
            num_workers=num_workers, collate_fn=collate_fn, pin_memory=pin_memory, drop_last=drop_last,
            timeout=timeout, worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context, generator=generator,
            prefetch_factor=prefetch_factor, persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device, in_order=in_order,
            snapshot_every_n_steps=snapshot_every_n_steps, seed=seed,
            max_bytes=max_bytes, on_error=on_error).items() if value is not None}
        if batch_size is not _UNSET:
            given["batch_size"] = batch_size
        self._options = options
        self._split = (options.get("delivery") or "split") == "split"
        self._chosen = features
        self._device = None if device is None else torch.device(device)
        self.pin_memory = bool(pin_memory)
        self._reader: Optional[Reader] = None
        self._left: Optional[int] = None  # the epoch of a loop that has not ended it
        self._epoch: Optional[int] = None  # what set_epoch has been told
        self._loaded: Optional[Dict[str, Any]] = None  # a state that no loop began at
        self._loop = 0  # the number of the newest loop
        self._running: Optional[int] = None  # a loop that has not ended
        self._places: Dict[int, State] = {}  # of loops that another one has left behind
        self._over: Optional[int] = None  # an epoch that an iterable has ended
        self._rows: Union[_Spec, _MapStyle, _Iterable]
        if isinstance(dataset, (type(None), str, bytes, os.PathLike, Dataset)) or (
                inspect.isfunction(dataset)):
            self._rows = _Spec(dataset, **given)
            self._attach()
            return
        if features is not None:
            raise TypeError("features: they are those of a spec; a dataset's batches "
                            "are nested as its samples are")
        self._given = dict(given, device=device, **options)
        self._rows = rows = (_Iterable if _is_iterable(dataset) else _MapStyle)(
            dataset, _name or _name_of(dataset), **given)
        # The attributes that PyTorch's has.
        self.dataset, self.batch_size = rows.dataset, rows.batch_size
        self.sampler, self.drop_last = rows.sampler, rows.drop_last
        self.num_workers, self.collate_fn = rows.num_workers, rows.collate_fn
        self.worker_init_fn, self.timeout = rows.worker_init_fn, rows.timeout
        self.generator = generator

    def __setattr__(self, name: str, value: Any) -> None:
        """ValueError: what a map-style dataset's loader was made with."""
        if name == "batch_sampler" or name in _FIXED and name in self.__dict__:
            raise ValueError(f"{name}: a DataLoader keeps what it was made with: make "
                             "another one")
        super().__setattr__(name, value)

    @property
    def reader(self) -> Reader:
        """The Reader; attaches it at the first use."""
        return self._attach() if self._reader is None else self._reader

    def _attach(self) -> Reader:
        ranks = _ranks(self._options)
        source, options = self._rows.source(dict(self._options), ranks)
        if ranks is not None:
            options.update(rank=ranks.rank, world_size=ranks.world_size,
                           local_world_size=ranks.local_world_size)
        with self._rows.raising():
            reader = attach(source, **options)
        try:
            self._features = (None if self._chosen is None else
                              reader.element_spec.chosen(self._chosen))
            self._rows.attached(reader)
        except BaseException:
            reader.close()
            raise
        self._reader = reader
        self._ranks_known = reader.world_size > 1 or "world_size" in options
        return reader

    def _steps(self) -> Optional[int]:
        """Steps of an epoch, where they are known before it is attached."""
        if self._reader is not None or not self._split:
            return None
        return self._rows.steps(_world_size(self._options))

    def __len__(self) -> int:
        """Steps of an epoch; TypeError in dynamic delivery, of a stream, and of an
        iterable dataset without a length."""
        if isinstance(self._rows, _Iterable):
            return self._rows.length(_world_size(self._options))
        steps = self._steps()
        return len(Epoch(self.reader, self.reader.epoch)) if steps is None else steps

    def __iter__(self) -> Iterator[Any]:
        return _Loop(self, self._batches())

    def _batches(self) -> Iterator[Any]:
        if data.get_worker_info() is not None:
            raise errors.FailedPrecondition(
                "penstock.torch.DataLoader in a worker of PyTorch's: give that one "
                "num_workers=0; processes of the broker make the samples")
        if self._steps() == 0:
            return
        reader = self.reader
        if not self._ranks_known and _world_size(self._options) > 1:
            raise errors.FailedPrecondition(
                "this loader attached as the only rank, before torch.distributed had "
                "its ranks, and each of them would get all rows: make it after "
                "init_process_group (with Lightning in `train_dataloader()`)")
        chosen = self._rows.epoch()
        if chosen is not None:
            self._epoch = chosen
        ended, self._loaded = self._ended(), None
        if ended is not None and self._epoch in (None, ended):
            self._epoch = None
            return
        if self._running is not None:
            self._places[self._running] = self.state_dict()
        if isinstance(self._rows, _Iterable):
            reader = self._begin_epoch(reader)
        else:
            self._seek(reader)
        self._loop += 1
        loop = self._running = self._loop
        try:
            for epoch in reader.epochs():
                for result in self._results(epoch):
                    self._left = epoch.number
                    if isinstance(result, map_style.End):
                        self._over = epoch.number
                        return
                    yield result
                    del result
                    if self._loop != loop:
                        break
                else:
                    self._left = None
                    return
                break
            else:
                raise no_epoch_left(reader)
            yield from self._apart(loop)
        finally:
            self._places.pop(loop, None)
            if self._running == loop:
                self._running = None

    def _apart(self, loop: int) -> Iterator[Any]:
        """The rest of a loop whose place another one has taken: by a job of its own."""
        if isinstance(self._rows, _Spec):
            raise errors.FailedPrecondition(
                "another loop over this DataLoader has begun and taken the place of "
                "this one: a loop inside of a loop needs a DataLoader of its own")
        given = dict(self._given)
        if given.get("job"):
            given["job"] += f".{loop}"
        with DataLoader(self.dataset, _name=f"{self._rows.name}.{loop}",
                        **given) as other:
            other.load_state_dict(self._places[loop])
            yield from other._batches()

    def _results(self, epoch: Epoch) -> Iterator[Any]:
        with self._rows.raising():
            for batch in epoch:
                result = self._result(batch)
                del batch
                yield result
                del result

    def _seek(self, reader: Reader) -> None:
        """Goes to the epoch that the next loop is of."""
        anew = self._rows.loop_is_epoch and self._left == reader.epoch
        if anew and self._split and reader.state_dict()["epoch"] != reader.epoch:
            reader._take()  # left at its last batch: only the end is to be taken
            anew = False
        epoch = reader.epoch + anew if self._epoch is None else self._epoch
        if anew or epoch != reader.epoch:
            self._go_to(reader, {**reader.state_dict(), "epoch": epoch, "row": 0,
                                 "owed": []})
        self._left = self._epoch = self._over = None

    def _begin_epoch(self, reader: Reader) -> Reader:
        """The Reader of an iterable dataset's next loop. Each epoch is a job of its own,
        since where one ends is not known: others may not have come to it yet."""
        state = self.state_dict()
        epoch = state["epoch"] if self._left is None else self._left + 1
        epoch = epoch if self._epoch is None else self._epoch
        if self._left is not None or epoch != state["epoch"]:
            state.pop("iterators", None)
            reader = self._attach_at({**state, "epoch": epoch, "row": 0, "owed": []})
        self._left = self._epoch = self._over = None
        return reader

    def _attach_at(self, state: State) -> Reader:
        if self._reader is not None:
            self._reader.close()
        self._options["state"] = state_text(state)
        return self._attach()

    def _go_to(self, reader: Reader, state: State) -> None:
        """Every rank goes there. The first one that does takes the batches that are
        under way from the others, so it waits until they have come here."""
        if 1 < reader.world_size == _group_size():
            distributed.barrier()
        reader.load_state_dict(state)

    def set_epoch(self, epoch: int) -> None:
        """The next loop is of this epoch. A loop of it that a state goes on with is
        not begun anew."""
        self._epoch = epoch

    def _result(self, batch: Batch) -> Any:
        result = self._rows.result(batch, self.reader, self._placed)
        if self._features is None:
            return result
        return tuple(result[name] for name in self._features)

    def _placed(self, tensor: torch.Tensor) -> torch.Tensor:
        to = "cpu" if self._device is None else self._device.type
        if to == "cuda" or self.pin_memory and torch.cuda.is_available():
            tensor = tensor.pin_memory()
        if to != "cpu":
            # PyTorch keeps the pinned memory until the copy is done.
            tensor = tensor.to(self._device, non_blocking=to == "cuda")
        return tensor

    @property
    def epoch(self) -> int:
        """The next batch's epoch, from 0; ``epoch_count`` at the end. The next
        loop's, where a state has left no batch of it."""
        reader, ended = self.reader, self._ended()
        if ended is not None:
            return ended
        return reader.epoch if self._over is None else self._over + 1

    @property
    def epoch_count(self) -> Optional[int]:
        """Epochs of the job; None: forever."""
        return self.reader.epoch_count

    @property
    def batch_sampler(self) -> Any:
        """AttributeError: packages would make another loader of it."""
        raise AttributeError(
            "penstock.torch.DataLoader has no batch_sampler, as the broker makes the "
            "batches: resume by state_dict() or set_epoch(); for code that skips "
            "batches, torch.utils.data.DataLoader(loader, batch_size=None)")

    def state_dict(self) -> Dict[str, Any]:
        """As ``Reader.state_dict``. Inside of a map-style dataset's loop that has its
        last batch: of that epoch, of which no batch is left."""
        state = self.reader.state_dict()
        if self._ended() is not None:
            return dict(self._loaded or {})
        if isinstance(self._rows, _Iterable):
            if self._over is not None:
                return {**state, "epoch": self._over + 1, "row": 0, "owed": []}
            return {**state, **self._rows.state(state)}
        if self._rows.loop_is_epoch and self._left == self.reader.epoch and (
                self._split and state["epoch"] != self._left):
            state.update(epoch=self._left, row=self.reader.sample_count)
        return state

    def _ended(self) -> Optional[int]:
        """The epoch of a loaded state that leaves no batch of it."""
        if self._loaded is None or not isinstance(self._rows, _MapStyle) or (
                self._loaded.get("row", 0) < self.reader.sample_count):
            return None
        return int(self._loaded["epoch"])

    def load_state_dict(self, state: State) -> None:
        """As ``Reader.load_state_dict``."""
        self._loaded = json.loads(state_text(state))
        if isinstance(self._rows, _Iterable):
            self._rows.begin_at(self._loaded.pop("iterators", ""), self._loaded["row"])
            state = self._loaded
        if self._reader is None:
            self._options["state"] = state_text(state)
        elif isinstance(self._rows, _Iterable):
            self._attach_at(state)
        else:
            self._go_to(self._reader, state)
        self._left = self._epoch = self._over = None

    def close(self) -> None:
        """As ``Reader.close``."""
        if self._reader is not None:
            self._reader.close()
            self._rows.closed()

    def __enter__(self) -> "DataLoader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Loop:
    """A loop's iterator; as PyTorch's it has the length of an epoch."""

    def __init__(self, loader: DataLoader, batches: Iterator[Any]):
        self._loader, self._batches = loader, batches

    def __iter__(self) -> "_Loop":
        return self

    def __next__(self) -> Any:
        result = next(self._batches)
        # As in PyTorch the loop may go on after it.
        if isinstance(result, map_style.Failure):
            raise result.error()
        return result

    def __len__(self) -> int:
        return len(self._loader)


class _Spec:
    """Rows of a spec, which says all of them: batches are tensors by feature."""

    # After a ``break`` the next loop is of the rest of the epoch.
    loop_is_epoch = False

    def __init__(self, spec: Any, **given: Any):
        for name in given:
            raise TypeError(f"penstock.torch.DataLoader of a spec has no {name!r}: "
                            + _ELSEWHERE[name])
        self._spec = spec

    def source(self, options: Dict[str, Any],
               ranks: Optional[map_style.Ranks]) -> Tuple[Any, Dict[str, Any]]:
        """What ``attach`` takes: a spec, and options."""
        return self._spec, options

    def attached(self, reader: Reader) -> None:
        """Learns from the Reader what is delivered."""

    def closed(self) -> None:
        """Nothing will be made for it any more."""

    def steps(self, world_size: int) -> Optional[int]:
        """Steps of an epoch that the ranks divide; None: the broker knows them."""
        return None

    def epoch(self) -> Optional[int]:
        """The epoch of the next loop, where a sampler was set to another one."""
        return None

    def raising(self) -> ContextManager[None]:
        """What errors of rows are raised as."""
        return contextlib.nullcontext()

    def result(self, batch: Batch, reader: Reader,
               placed: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        """What the loop gets; placed: a tensor where the loop wants it."""
        return {name: placed(tensor) for name, tensor in batch.torch().items()}


class _Object:
    """A dataset of Python, with PyTorch's arguments: batches are what collate_fn makes
    of its samples. Its methods are those of _Spec."""

    # After a ``break`` the next loop is of the next epoch, as PyTorch's.
    loop_is_epoch = True

    def __init__(self, dataset: Any, name: str, *, batch_size: Optional[int] = 1,
                 num_workers: Optional[int] = None,
                 collate_fn: Optional[Callable[[List[Any]], Any]] = None,
                 pin_memory: bool = False, drop_last: bool = False, timeout: float = 0,
                 worker_init_fn: Optional[Callable[[int], None]] = None,
                 max_bytes: Optional[int] = None, on_error: str = "fail",
                 **meaningless: Any):
        self.name = name
        if batch_size is None and drop_last:
            raise ValueError("batch_size=None makes no batches: drop_last has no "
                             "meaning")
        if batch_size is not None:
            _check_whole("batch_size", batch_size, 1)
        _check_whole("num_workers", 0 if num_workers is None else num_workers, 0)
        if not isinstance(timeout, (int, float)) or not timeout >= 0:
            raise ValueError(f"timeout: wanted seconds from 0, found {timeout!r}")
        if num_workers == 0:
            _check_without_workers(**meaningless)
        self.dataset, self.batch_size = dataset, batch_size
        self.drop_last = bool(drop_last)
        self.num_workers, self.collate_fn = num_workers or 0, collate_fn
        processors = os.cpu_count() or 1
        _tell(f"penstock.torch.DataLoader: num_workers: {num_workers} processes on "
              f"{processors} processors: more than these help only a dataset that waits"
              if self.num_workers > processors else "")
        self.worker_init_fn, self.timeout = worker_init_fn, timeout
        self._max_bytes, self._on_error = max_bytes, on_error
        self._per_rank = batch_size or 1
        if batch_size is None:
            self._collate: Any = map_style.OneSample(collate_fn or data.default_convert)
        else:
            self._collate = collate_fn or data.default_collate
        names = sorted(meaningless)
        _tell(f"penstock.torch.DataLoader: {', '.join(names)} "
              f"{'means' if len(names) == 1 else 'mean'} nothing here: the "
              "broker decides it for all ranks" if names else "")

    def source(self, options: Dict[str, Any],
               ranks: Optional[map_style.Ranks]) -> Tuple[Any, Dict[str, Any]]:
        world_size = _world_size(options)
        seed = self._seed()
        name = f"{self.name}-{map_style.launch(ranks)}"
        socket = options.pop("socket", None) or map_style.own_socket(ranks)
        spec, withdraw = map_style.spec_of(
            name, socket, collate_fn=self._collate, seed=seed,
            worker_init_fn=self.worker_init_fn, max_bytes=self._max_bytes,
            processes=self.num_workers or None, **self._object(world_size))
        self._withdraw = weakref.finalize(self, withdraw)
        spec = self._batched(spec.seed(seed)).repeat(None)
        # As many batches under way as PyTorch has, so that a slow one holds up no
        # other.
        makers = self.num_workers or os.cpu_count() or 1
        spec = spec.prefetch(min(max(-(-2 * makers // world_size), 2), 32))
        if self.timeout and "timeout_s" not in options:
            options["timeout_s"] = self.timeout
        return spec, {"job": name, **options, "socket": socket}

    def _seed(self) -> int:
        raise NotImplementedError

    def _object(self, world_size: int) -> Dict[str, Any]:
        """More arguments of map_style.spec_of."""
        raise NotImplementedError

    def _batched(self, spec: Dataset) -> Dataset:
        raise NotImplementedError

    def closed(self) -> None:
        self._withdraw()

    def raising(self) -> ContextManager[None]:
        return map_style.raising()

    @staticmethod
    def _whole(batch: Batch, reader: Reader, placed: Callable[[torch.Tensor], torch.Tensor]
               ) -> Callable[[int], torch.Tensor]:
        """Gives the first bytes of a batch as a tensor."""

        def whole(size: int) -> torch.Tensor:
            tensor = batch.torch()["batch"][0, :size]
            stats = reader.stats()
            # A loop that keeps its batches gets copies: the broker needs the memory.
            if stats["held"] >= stats["hold_max"]:
                tensor = tensor.clone()
            return placed(tensor)

        return whole


class _MapStyle(_Object):
    """Of a map-style one: the ranks share its positions."""

    def __init__(self, dataset: Any, name: str, *, shuffle: bool = False,
                 sampler: Any = None, batch_sampler: Any = None,
                 generator: Optional[torch.Generator] = None,
                 seed: Optional[int] = None, **given: Any):
        if batch_sampler is not None:
            if given.get("batch_size", 1) != 1 or shuffle or sampler is not None or (
                    given.get("drop_last")):
                raise ValueError("batch_sampler says batch_size, shuffle, sampler and "
                                 "drop_last too: give these, or it")
            if type(batch_sampler) is data.BatchSampler:
                sampler = batch_sampler.sampler
                given.update(batch_size=batch_sampler.batch_size,
                             drop_last=batch_sampler.drop_last)
                batch_sampler = None
        _check_map_style(dataset)
        super().__init__(dataset, name, **given)
        if shuffle not in (True, False):
            raise ValueError(f"shuffle: wanted True or False, found {shuffle!r}")
        if shuffle and sampler is not None:
            raise ValueError("shuffle and sampler both give the order: give one")
        # A batch of its own size is one row of a rank.
        self._gives_batches = batch_sampler is not None
        if self._gives_batches:
            self._per_rank = 1
        self._empty: Any = None
        self._order = _Order(dataset, shuffle,
                             sampler if batch_sampler is None else batch_sampler, seed,
                             generator)
        self.sampler = (sampler if sampler is not None else
                        data.RandomSampler(dataset, generator=generator)
                        if shuffle and len(dataset) > 0
                        else data.SequentialSampler(dataset))

    def _seed(self) -> int:
        return self._order.seed()

    def _object(self, world_size: int) -> Dict[str, Any]:
        return {"dataset": self.dataset,
                "sampler": self._order.of_ranks(world_size, self._per_rank),
                "batch_size": 0 if self._gives_batches else self._per_rank,
                "on_error": self._on_error}

    def _batched(self, spec: Dataset) -> Dataset:
        if self._order.shuffle:
            spec = spec.shuffle(seed=self._order.seed())
        return spec.batch(
            per_rank=self._per_rank, last="drop" if self.drop_last else "partial"
        ).on_error(self._on_error)

    def attached(self, reader: Reader) -> None:
        self._order.check(reader.world_size, reader.rank)
        if self.drop_last or reader.delivery != "split":
            return
        left = reader.sample_count % (self._per_rank * reader.world_size)
        _tell(f"penstock.torch.DataLoader: the last batch of an epoch has {left} "
              f"rows, fewer than the {reader.world_size} ranks: some get a batch of "
              "no rows, whose mean loss is NaN. drop_last=True leaves it out"
              if 0 < left < reader.world_size else "")

    def steps(self, world_size: int) -> Optional[int]:
        rows = self._order.row_count(world_size)
        batch = self._per_rank * world_size
        return int(rows // batch if self.drop_last else -(-rows // batch))

    def epoch(self) -> Optional[int]:
        return self._order.epoch()

    def result(self, batch: Batch, reader: Reader,
               placed: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        if batch.rows == 0:
            return self._without_rows()
        return map_style.load_batch(batch["batch"][0],
                                    self._whole(batch, reader, placed))

    def _without_rows(self) -> Any:
        """A batch of no rows, as the others are: made here of one sample."""
        if self._empty is None:
            sampler = self._order.sampler_of_rows()
            index: Any = 0 if sampler is None else next(iter(sampler))
            if self._gives_batches:
                index = index[0]
            self._empty = map_style.without_rows(
                self._collate([self.dataset[index]]), 1)
        return self._empty


class _Iterable(_Object):
    """Of an iterable one: processes iterate over it once for all ranks of this host,
    and a record is a batch."""

    def __init__(self, dataset: Any, name: str, *, shuffle: Any = None,
                 sampler: Any = None, batch_sampler: Any = None,
                 generator: Optional[torch.Generator] = None,
                 seed: Optional[int] = None, **given: Any):
        kind = type(dataset).__name__
        for argument, value in (("shuffle", shuffle), ("sampler", sampler),
                                ("batch_sampler", batch_sampler)):
            if value not in (None, False):
                raise ValueError(f"{argument}: {kind} is an IterableDataset, whose order "
                                 "is its own")
        if given.get("on_error", "fail") != "fail":
            raise ValueError(f"on_error: {kind} is an IterableDataset, which ends where "
                             "it raises: let it leave such samples out itself")
        super().__init__(dataset, name, **given)
        self.sampler = None
        self._given_seed, self._generator = seed, generator
        self._epoch = self._dataset_epoch()
        self._made: Optional[Tuple[Any, Dict[str, Any]]] = None
        self._loads = 0  # states, each of which the dataset is pickled with
        self._begun: Dict[int, int] = collections.Counter()  # jobs, by epoch
        self._said_length: Optional[int] = None  # what len() was
        self._begin = b""  # a position of the iterators, of a state
        self._position = b""  # after the last batch that had one

    def source(self, options: Dict[str, Any],
               ranks: Optional[map_style.Ranks]) -> Tuple[Any, Dict[str, Any]]:
        if self._made is None:
            self._made = super().source(dict(options), ranks)
        spec, made = self._made
        epoch = json.loads(options.get("state", "{}")).get("epoch", 0)
        self._begun[epoch] += 1
        # The same in all ranks, and of a rank that is started again at a state.
        job = f"{made['job']}.{epoch}.{self._begun[epoch]}"
        return spec, {**options, **made, "job": job,
                      **({"state": options["state"]} if "state" in options else {})}

    def _seed(self) -> int:
        return _seed_of(self._given_seed, self._generator)

    def _object(self, world_size: int) -> Dict[str, Any]:
        return {"dataset": self._of_all_ranks(world_size), "iterable": True,
                "batch_size": self.batch_size or 0, "drop_last": self.drop_last,
                "begin": self._begin, "without_rows": map_style.without_rows}

    def _batched(self, spec: Dataset) -> Dataset:
        return spec.batch(per_rank=1)

    def _of_all_ranks(self, world_size: int) -> Any:
        """Without the division of datasets.distributed.split_dataset_by_node."""
        part = getattr(self.dataset, "_distributed", None)
        if part is None or part.world_size == 1:
            return self.dataset
        if part.world_size != world_size:
            raise ValueError(
                f"the dataset is part {part.rank} of {part.world_size} "
                f"(split_dataset_by_node), and this loader has {world_size} ranks: "
                "leave that out: the ranks share each epoch without it")
        _tell("penstock.torch.DataLoader: the ranks share each epoch without "
              "split_dataset_by_node")
        whole = copy.copy(self.dataset)
        whole._distributed = None
        return whole

    def attached(self, reader: Reader) -> None:
        if reader.delivery in ("dynamic", "independent"):
            raise ValueError("delivery: wanted split or broadcast for an IterableDataset")

    def steps(self, world_size: int) -> Optional[int]:
        return None

    def length(self, world_size: int) -> int:
        """Steps of an epoch by the dataset's own length; TypeError: it has none."""
        if not hasattr(self.dataset, "__len__"):
            raise TypeError(f"{type(self.dataset).__name__} has no length")
        rows = len(self.dataset)
        size = self.batch_size or 1
        batches = rows // size if self.drop_last else -(-rows // size)
        self._said_length = -(-batches // world_size)
        return self._said_length

    def epoch(self) -> Optional[int]:
        epoch = self._dataset_epoch()
        if epoch == self._epoch:
            return None
        self._epoch = epoch
        return epoch

    def _dataset_epoch(self) -> Optional[int]:
        """What its set_epoch was told."""
        epoch = getattr(self.dataset, "epoch", None)
        return epoch if hasattr(self.dataset, "set_epoch") and (
            isinstance(epoch, int)) else None

    def result(self, batch: Batch, reader: Reader,
               placed: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        memory = batch["batch"][0]
        result = map_style.load_batch_or_end(
            memory, self._whole(batch, reader, placed))
        if isinstance(result, map_style.End):
            ranks = reader.world_size if reader.delivery == "split" else 1
            # In the last step only some of the ranks may have a batch.
            return result.empty if batch.step * ranks < result.batches else result
        self._position = map_style.position_of(memory) or self._position
        if self._said_length is not None and batch.step >= self._said_length:
            warnings.warn(
                f"len() of the loader is {self._said_length}, by that of "
                f"{type(self.dataset).__name__}, and batch {batch.step + 1} has come: "
                "each of num_workers processes iterates over all of a dataset that does "
                "not divide itself by get_worker_info()", stacklevel=2)
        return result

    def state(self, state: Dict[str, Any]) -> Dict[str, Any]:
        """What a state has beside that of the Reader: where the iterators are."""
        position = self._position
        if not position:
            return {}
        epoch, row = struct.unpack_from("<QQ", position)
        if epoch != state["epoch"] or row > state["row"]:
            return {}
        return {"iterators": base64.b64encode(position).decode()}

    def begin_at(self, iterators: str, row: int) -> None:
        """Where a state's iterators are; "": they pass over the batches before it."""
        self._begin = self._position = base64.b64decode(iterators)
        if self._made is not None:
            self.closed()
            self._made = None
            self._loads += 1
            self.name = f"{self.name.partition('+')[0]}+{self._loads}"
        _tell(f"penstock.torch.DataLoader: {type(self.dataset).__name__} has no "
              "state_dict: it passes over the batches before a state"
              if row > 0 and not iterators else "")


class _Order:
    """The order of a map-style dataset's rows, by PyTorch's arguments."""

    def __init__(self, dataset: Any, shuffle: bool, sampler: Any, seed: Optional[int],
                 generator: Optional[torch.Generator]):
        self.shuffle = shuffle
        self._dataset = dataset
        self._sampler = sampler  # what the broker asks; None: it makes the order
        self._seed, self._generator = seed, generator
        self._distributed: Any = None
        if isinstance(sampler, data.DistributedSampler):
            self._distributed, self._epoch = sampler, sampler.epoch
            self._seed = sampler.seed if seed is None else seed
        if type(sampler) is data.DistributedSampler:
            self.shuffle = sampler.shuffle
            # Validation that drops the last rows comes back to them in another loader.
            self._sampler = (range(sampler.total_size)
                             if sampler.drop_last and not sampler.shuffle else None)
            _tell("penstock.torch.DataLoader: the ranks share each epoch without the "
                  "DistributedSampler, and no row comes twice to make their parts equal")
        elif type(sampler) is data.SequentialSampler:
            self._sampler = None
        elif type(sampler) is data.RandomSampler and not sampler.replacement and (
                sampler.num_samples == len(dataset)):
            self.shuffle, self._sampler = True, None

    def row_count(self, world_size: int) -> int:
        """Rows of an epoch, of all ranks."""
        if self._sampler is None:
            return len(self._dataset)
        ranks = world_size if self._sampler is self._distributed else 1
        return len(self._sampler) * ranks

    def sampler_of_rows(self) -> Any:
        """What gives the indices of one rank; None: all in turn."""
        return self._sampler

    def of_ranks(self, world_size: int, batch_size: int) -> Any:
        """What the broker asks for the indices of all ranks; None: it makes them."""
        self.check(world_size)
        if self._distributed is None or self._sampler is not self._distributed:
            return self._sampler
        return map_style.OfRanks(self._sampler, batch_size)

    def check(self, world_size: int, rank: Optional[int] = None) -> None:
        """ValueError: a DistributedSampler of another number of ranks, or rank."""
        sampler = self._distributed
        if sampler is None:
            return
        if sampler.num_replicas == world_size and rank in (None, sampler.rank):
            return
        this = "one" if rank is None else f"rank {rank}"
        raise ValueError(
            f"the DistributedSampler is of rank {sampler.rank} of "
            f"{sampler.num_replicas}, this loader of {this} of {world_size}: start as "
            "many ranks (torchrun), or leave the sampler out: the ranks share each "
            "epoch without one")

    def seed(self) -> int:
        """The seed of the order and of the dataset's random numbers."""
        return _seed_of(self._seed, self._generator)

    def epoch(self) -> Optional[int]:
        """The epoch that a DistributedSampler was set to since the last call."""
        if self._distributed is None or self._distributed.epoch == self._epoch:
            return None
        self._epoch = self._distributed.epoch
        return int(self._epoch)


def _seed_of(seed: Optional[int], generator: Optional[torch.Generator]) -> int:
    if seed is None:
        seed = 0 if generator is None else generator.initial_seed()
    return seed % (1 << 63)


def _name_of(dataset: Any) -> str:
    """The same in all ranks, whatever other loaders only some of them make: by the
    dataset's class and the line that makes the loader."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__") == __name__:
        frame = frame.f_back
    line = f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
    name = f"{map_style.type_name(dataset)}-{zlib.crc32(line.encode()):08x}"
    _numbers[name] += 1
    return f"{name}-{_numbers[name]}"


def _ranks(options: Dict[str, Any]) -> Optional[map_style.Ranks]:
    """The ranks of torch.distributed, unless the options or a launcher number them:
    of torch.multiprocessing.spawn or Lightning. All ranks ask."""
    if (options.get("world_size") is not None or _core.launch()[1] > 1
            or _group_size() == 1):
        return None
    return _gathered(distributed.get_rank(), _group_size())


def _world_size(options: Dict[str, Any]) -> int:
    if options.get("world_size") is not None:
        return int(options["world_size"])
    launched = _core.launch()[1]
    return launched if launched > 1 else _group_size()


def _group_size() -> int:
    """The number of ranks of torch.distributed; 1 without it."""
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return 1


@functools.lru_cache(maxsize=None)
def _gathered(rank: int, world_size: int) -> map_style.Ranks:
    places: List[Any] = [None] * world_size
    distributed.all_gather_object(places, (sockets.gethostname(), os.getpid()))
    here = [place for place in places if place[0] == places[rank][0]]
    return map_style.Ranks(rank, world_size, len(here), "-".join(map(str, places[0])))


def _is_iterable(dataset: Any) -> bool:
    """Whether it is an iterable dataset. TypeError: a datapipe."""
    if any(each.__module__.startswith("torch.utils.data.datapipes")
           for each in type(dataset).__mro__):
        raise TypeError(f"{type(dataset).__name__} is a datapipe, which PyTorch has "
                        "given up: give its dataset, or an IterableDataset")
    kind = type(dataset)
    # LitData's streams and others have positions all the same; Hugging Face's have a
    # __getitem__ of columns, and are PyTorch's only where that was imported before.
    has_rows = hasattr(kind, "__len__") and getattr(
        kind, "__getitem__", data.Dataset.__getitem__) is not data.Dataset.__getitem__
    return hasattr(kind, "__iter__") and not has_rows


def _check_map_style(dataset: Any) -> None:
    kind = type(dataset)
    for method in ("__len__", "__getitem__"):
        if not hasattr(kind, method):
            raise TypeError(f"{kind.__name__} has no {method}: wanted a map-style "
                            "dataset")


def _check_whole(name: str, value: Any, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name}: wanted a whole number from {least}, found {value!r}")


def _check_without_workers(prefetch_factor: Optional[int] = None,
                           persistent_workers: bool = False,
                           multiprocessing_context: Any = None, **others: Any) -> None:
    """PyTorch's refusals for num_workers=0, so that a loop runs with either."""
    if prefetch_factor is not None or persistent_workers or (
            multiprocessing_context is not None):
        raise ValueError("prefetch_factor, persistent_workers and "
                         "multiprocessing_context are for num_workers > 0")


def _tell(text: str) -> None:
    """Warns of it, once in this process."""
    if text and text not in _told:
        _told.add(text)
        warnings.warn(text, stacklevel=4)
