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

import functools
import inspect
import itertools
import os
import socket as sockets
import warnings
from typing import (Any, Callable, Dict, Iterator, List, Optional, Sequence, Set,
                    Tuple, Union)

import torch
from torch import distributed
from torch.utils import data

from penstock import _core, errors, map_style
from penstock.batch import Batch
from penstock.dataset import Dataset
from penstock.reader import (Epoch, Reader, State, attach, no_epoch_left,
                             state_text)

Tensors = Dict[str, torch.Tensor]

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
              "in_order", "pin_memory_device"):
    _ELSEWHERE[_name] = _ELSEWHERE["num_workers"]
_ELSEWHERE["batch_sampler"] = _ELSEWHERE["generator"] = _ELSEWHERE["sampler"]

_UNSET: Any = object()

_numbers = itertools.count()  # the loaders of map-style datasets, in this process
_told: Set[str] = set()


class DataLoader(data.IterableDataset):  # type: ignore[misc]
    """An iterable of an epoch's batches as tensors ``[rows, *shape]``.

    Of a spec: each ``for`` takes the next epoch (after a ``break``, the rest of that
    epoch). After the last epoch, the first if the dataset sets no number
    (``.repeat(n)``, ``epochs:``), it raises FailedPrecondition.

    Of a map-style dataset of Python (``__len__``, ``__getitem__``): as PyTorch's.
    Each ``for`` is an epoch, also after a ``break``. Batches are nested as samples
    are: lists for tuples, namedtuples, dicts, lists of str. Processes of the broker
    make the samples, once for all ranks of this host; every rank gets its part of
    each global batch of ``batch_size`` rows a rank. It attaches at its first use, so
    that it may be made before the ranks are known.

    Rank and number of ranks are those of ``attach``, else of ``torch.distributed``.
    Where a loop begins elsewhere than the last one ended (after a ``break``, at a
    state), all ranks meet: in ``torch.distributed.barrier``, else they have to leave
    the loop together. A loop that begins while another one over the same loader is
    under way takes its place; the other raises FailedPrecondition.

    It is no ``torch.utils.data.DataLoader``: packages that divide or rebuild those
    leave it as it is. For code that takes nothing else it is an iterable dataset of
    batches: ``torch.utils.data.DataLoader(loader, batch_size=None)``.

    Args:
      dataset: a spec, as ``penstock.attach`` takes it, or a map-style dataset, which
        cloudpickle pickles for this program's own broker (``penstock run``,
        ``penstock.broker()``, else the first loader of this host starts one).
      batch_size, shuffle, sampler, batch_sampler, num_workers, collate_fn,
        pin_memory, drop_last, timeout, worker_init_fn, multiprocessing_context,
        generator, prefetch_factor, persistent_workers, pin_memory_device, in_order:
        of map-style datasets, as in PyTorch, except:
        sampler: asked for the indices of each epoch, which the ranks share; a
          DistributedSampler says whether to shuffle, by ``set_epoch`` the epoch, and
          unshuffled with ``drop_last`` how many rows.
        num_workers: how many processes make samples; 0: one per processor.
        collate_fn: called in the rank with a list of samples, which come pickled.
        generator: its ``initial_seed()`` is the seed.
        multiprocessing_context, prefetch_factor, persistent_workers,
          pin_memory_device, in_order: mean nothing here, said once.
      seed: of the order and of ``random``, ``numpy.random`` and ``torch`` in the
        dataset: each sample of an epoch has its own. 0.
      max_bytes: room for a str or, with ``collate_fn``, a pickled sample. None: some
        times what the first one takes.
      on_error: of a sample that raises: "fail", "skip" or "substitute" (by the
        next one).
      features: names; batches are then tuples of these tensors instead of
        dictionaries of all. KeyError: no such feature.
      device: None or "cpu": tensors over the batch's memory, which is held while one
        of them is alive (``Batch.torch``). Else copies on this device. A copy to a
        CUDA device goes through pinned memory, asynchronously on the current stream,
        and the batch is free at once.
      **options: as ``penstock.attach``.

    Raises:
      TypeError: an argument of the other kind of dataset, or an object that cannot
        be pickled or is not map-style.
      InvalidArgument: a sample that is not made of arrays, tensors, pictures,
        numbers, str, and lists, tuples and dicts of them.
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
                 seed: Optional[int] = None,
                 max_bytes: Optional[int] = None,
                 on_error: Optional[str] = None,
                 features: Optional[Sequence[str]] = None,
                 device: Union[str, torch.device, None] = None,
                 **options: Any):
        unknown = set(options) - set(inspect.signature(attach).parameters)
        if unknown:
            raise TypeError("penstock.torch.DataLoader has no argument "
                            f"{sorted(unknown)[0]!r}")
        if batch_size is None:
            raise TypeError("batch_size=None: samples come as batches; take "
                            "batch_size=1, or collate_fn=lambda rows: rows[0]")
        given = {name: value for name, value in dict(
            batch_size=None if batch_size is _UNSET else batch_size, shuffle=shuffle,
            sampler=sampler, batch_sampler=batch_sampler, num_workers=num_workers,
            collate_fn=collate_fn, pin_memory=pin_memory, drop_last=drop_last,
            timeout=timeout, worker_init_fn=worker_init_fn,
            multiprocessing_context=multiprocessing_context, generator=generator,
            prefetch_factor=prefetch_factor, persistent_workers=persistent_workers,
            pin_memory_device=pin_memory_device, in_order=in_order, seed=seed,
            max_bytes=max_bytes, on_error=on_error).items() if value is not None}
        self._options = options
        self._split = (options.get("delivery") or "split") == "split"
        self._chosen = features
        self._device = None if device is None else torch.device(device)
        self.pin_memory = bool(pin_memory)
        self._reader: Optional[Reader] = None
        self._left: Optional[int] = None  # the epoch of a loop that has not ended it
        self._epoch: Optional[int] = None  # what set_epoch has been told
        self._loop = 0  # the number of the newest loop
        self._rows: Union[_Spec, _MapStyle]
        if isinstance(dataset, (type(None), str, bytes, os.PathLike, Dataset)):
            self._rows = _Spec(dataset, **given)
            self._attach()
            return
        self._rows = rows = _MapStyle(dataset, **given)
        # The attributes that PyTorch's has.
        self.dataset, self.batch_size = rows.dataset, rows.batch_size
        self.sampler, self.drop_last = rows.sampler, rows.drop_last
        self.num_workers, self.collate_fn = rows.num_workers, rows.collate_fn
        self.worker_init_fn, self.timeout = rows.worker_init_fn, rows.timeout
        self.generator = generator

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
        reader = attach(source, **options)
        self._features = (None if self._chosen is None else
                          reader.element_spec.chosen(self._chosen))
        self._reader = reader
        self._rows.attached(reader)
        self._ranks_known = reader.world_size > 1 or "world_size" in options
        return reader

    def _steps(self) -> Optional[int]:
        """Steps of an epoch, where they are known before it is attached."""
        if self._reader is not None or not self._split:
            return None
        return self._rows.steps(_world_size(self._options))

    def __len__(self) -> int:
        """Steps of an epoch; TypeError in dynamic delivery and of a stream."""
        steps = self._steps()
        return len(Epoch(self.reader, self.reader.epoch)) if steps is None else steps

    def __iter__(self) -> Iterator[Any]:
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
        self._seek(reader)
        self._loop += 1
        loop = self._loop
        for epoch in reader.epochs():
            for batch in epoch:
                self._left = epoch.number
                result = self._result(batch)
                del batch
                yield result
                del result
                if self._loop != loop:
                    raise errors.FailedPrecondition(
                        "another loop over this DataLoader has begun and taken the "
                        "place of this one: a loop inside of a loop needs a DataLoader "
                        "of its own")
            self._left = None
            return
        raise no_epoch_left(reader)

    def _seek(self, reader: Reader) -> None:
        """Goes to the epoch that the next loop is of."""
        chosen = self._rows.epoch()
        if chosen is not None:
            self._epoch = chosen
        anew = self._rows.loop_is_epoch and self._left == reader.epoch
        if anew and self._split and reader.state_dict()["epoch"] != reader.epoch:
            reader._take()  # left at its last batch: only the end is to be taken
            anew = False
        epoch = reader.epoch + anew if self._epoch is None else self._epoch
        if anew or epoch != reader.epoch:
            self._go_to(reader, {**reader.state_dict(), "epoch": epoch, "row": 0,
                                 "owed": []})
        self._left = self._epoch = None

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
        if self._features is None:
            return self._rows.result(batch, self.reader, self._tensors)
        tensors = self._tensors(batch)
        return tuple(tensors[name] for name in self._features)

    def _tensors(self, batch: Batch) -> Tensors:
        tensors = batch.torch()
        to = "cpu" if self._device is None else self._device.type
        if to == "cuda" or self.pin_memory and torch.cuda.is_available():
            tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
        if to != "cpu":
            # PyTorch keeps the pinned memory until the copy is done.
            tensors = {name: tensor.to(self._device, non_blocking=to == "cuda")
                       for name, tensor in tensors.items()}
        return tensors

    @property
    def epoch(self) -> int:
        """The next batch's epoch, from 0; ``epoch_count`` at the end."""
        return self.reader.epoch

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
        """As ``Reader.state_dict``."""
        return self.reader.state_dict()

    def load_state_dict(self, state: State) -> None:
        """As ``Reader.load_state_dict``."""
        if self._reader is None:
            self._options["state"] = state_text(state)
        else:
            self._go_to(self._reader, state)
        self._left = self._epoch = None

    def close(self) -> None:
        """As ``Reader.close``."""
        if self._reader is not None:
            self._reader.close()

    def __enter__(self) -> "DataLoader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


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

    def steps(self, world_size: int) -> Optional[int]:
        """Steps of an epoch that the ranks divide; None: the broker knows them."""
        return None

    def epoch(self) -> Optional[int]:
        """The epoch of the next loop, where a sampler was set to another one."""
        return None

    def result(self, batch: Batch, reader: Reader,
               tensors: Callable[[Batch], Tensors]) -> Any:
        """What the loop gets."""
        return tensors(batch)


class _MapStyle:
    """Rows of a map-style dataset of Python, with PyTorch's arguments: batches are
    nested as its samples are. Its methods are those of _Spec."""

    # After a ``break`` the next loop is of the next epoch, as PyTorch's.
    loop_is_epoch = True

    def __init__(self, dataset: Any, *, batch_size: int = 1, shuffle: bool = False,
                 sampler: Any = None, batch_sampler: Any = None, num_workers: int = 0,
                 collate_fn: Optional[Callable[[List[Any]], Any]] = None,
                 pin_memory: bool = False, drop_last: bool = False, timeout: float = 0,
                 worker_init_fn: Optional[Callable[[int], None]] = None,
                 generator: Optional[torch.Generator] = None, seed: Optional[int] = None,
                 max_bytes: Optional[int] = None, on_error: str = "fail",
                 **meaningless: Any):
        self._number = next(_numbers)
        if batch_sampler is not None:
            if type(batch_sampler) is not data.BatchSampler:
                raise TypeError(
                    "batch_sampler: wanted a torch.utils.data.BatchSampler; others may "
                    "give batches of any size: give sampler and batch_size")
            sampler, batch_size, drop_last = (
                batch_sampler.sampler, batch_sampler.batch_size, batch_sampler.drop_last)
        if isinstance(dataset, data.IterableDataset) and (
                type(dataset).__getitem__ is data.Dataset.__getitem__):
            raise TypeError(
                f"{type(dataset).__name__} is an IterableDataset, which has no "
                "positions to shuffle, share or resume: put its rows with "
                "penstock.producer")
        for method in ("__len__", "__getitem__"):
            if not hasattr(type(dataset), method):
                raise TypeError(f"{type(dataset).__name__} has no {method}: wanted a "
                                "map-style dataset")
        if not isinstance(batch_size, int) or batch_size < 1:
            raise ValueError("batch_size: wanted a whole number from 1, found "
                             f"{batch_size!r}")
        if shuffle and sampler is not None:
            raise TypeError("shuffle and sampler both give the order: give one")
        self.dataset, self.batch_size = dataset, batch_size
        self.sampler, self.drop_last = sampler, bool(drop_last)
        self.num_workers, self.collate_fn = num_workers, collate_fn
        self.worker_init_fn, self.timeout = worker_init_fn, timeout
        self._max_bytes, self._on_error = max_bytes, on_error
        self._collate = None if collate_fn is data.default_collate else collate_fn
        names = sorted(meaningless)
        _tell(f"penstock.torch.DataLoader: {', '.join(names)} "
              f"{'means' if len(names) == 1 else 'mean'} nothing here: the "
              "broker decides it for all ranks" if names else "")
        self._order = _Order(dataset, shuffle, sampler, seed, generator)

    def source(self, options: Dict[str, Any],
               ranks: Optional[map_style.Ranks]) -> Tuple[Any, Dict[str, Any]]:
        name = (f"{map_style.type_name(self.dataset)}-{self._number}-"
                f"{map_style.launch(ranks)}")
        socket = options.pop("socket", None) or map_style.own_socket(ranks)
        spec = map_style.spec_of(
            name, socket, self.dataset, sampler=self._order.sampler,
            worker_init_fn=self.worker_init_fn, pickled=self._collate is not None,
            max_bytes=self._max_bytes, processes=self.num_workers or None)
        seed = self._order.seed()
        if self._order.shuffle:
            spec = spec.shuffle(seed=seed)
        spec = spec.seed(seed).batch(
            per_rank=self.batch_size, last="drop" if self.drop_last else "partial"
        ).on_error(self._on_error).repeat(None)
        # As many rows under way as PyTorch has, so that a slow one holds up no other.
        makers = self.num_workers or len(os.sched_getaffinity(0))
        spec = spec.prefetch(min(max(2 * makers, 2), 8))
        if self.timeout and "timeout_s" not in options:
            options["timeout_s"] = self.timeout
        return spec, {"job": name, **options, "socket": socket}

    def attached(self, reader: Reader) -> None:
        self._tree = map_style.tree_of(reader.structure, reader.element_spec)
        if self.drop_last or reader.delivery != "split":
            return
        left = reader.sample_count % (self.batch_size * reader.world_size)
        _tell(f"penstock.torch.DataLoader: the last batch of an epoch has {left} "
              f"rows, fewer than the {reader.world_size} ranks: some get a batch of "
              "no rows, whose mean loss is NaN. drop_last=True leaves it out"
              if 0 < left < reader.world_size else "")

    def steps(self, world_size: int) -> Optional[int]:
        sampler = self._order.sampler
        rows = len(self.dataset if sampler is None else sampler)
        batch = self.batch_size * world_size
        return int(rows // batch if self.drop_last else -(-rows // batch))

    def epoch(self) -> Optional[int]:
        return self._order.epoch()

    def result(self, batch: Batch, reader: Reader,
               tensors: Callable[[Batch], Tensors]) -> Any:
        found: Tensors = {}
        stats = reader.stats()
        # A loop that keeps its batches gets copies: the broker needs the memory.
        copies = stats["held"] >= stats["hold_max"]

        def tensor(name: str) -> torch.Tensor:
            if not found:
                found.update(tensors(batch))
            return found[name].clone() if copies else found[name]

        rows = map_style.rebuild(self._tree, batch.__getitem__, tensor)
        return rows if self._collate is None else self._collate(rows)


class _Order:
    """The order of a map-style dataset's rows, by PyTorch's arguments."""

    def __init__(self, dataset: Any, shuffle: bool, sampler: Any, seed: Optional[int],
                 generator: Optional[torch.Generator]):
        self.shuffle = shuffle
        self.sampler = sampler  # what the broker asks; None: it makes the order
        self._seed, self._generator = seed, generator
        self._distributed: Any = None
        if isinstance(sampler, data.DistributedSampler):
            self.shuffle = sampler.shuffle
            self._seed = sampler.seed if seed is None else seed
            # Validation that drops the last rows comes back to them in another loader.
            self.sampler = (range(sampler.total_size)
                            if sampler.drop_last and not sampler.shuffle else None)
            self._distributed, self._epoch = sampler, sampler.epoch
            _tell("penstock.torch.DataLoader: the ranks share each epoch without the "
                  "DistributedSampler, and no row comes twice to make their parts equal")
        elif type(sampler) is data.SequentialSampler:
            self.sampler = None
        elif type(sampler) is data.RandomSampler and not sampler.replacement and (
                sampler.num_samples == len(dataset)):
            self.shuffle, self.sampler = True, None

    def seed(self) -> int:
        """The seed of the order and of the dataset's random numbers."""
        seed = self._seed
        if seed is None:
            seed = 0 if self._generator is None else self._generator.initial_seed()
        return seed % (1 << 63)

    def epoch(self) -> Optional[int]:
        """The epoch that a DistributedSampler was set to since the last call."""
        if self._distributed is None or self._distributed.epoch == self._epoch:
            return None
        self._epoch = self._distributed.epoch
        return int(self._epoch)


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


def _tell(text: str) -> None:
    """Warns of it, once in this process."""
    if text and text not in _told:
        _told.add(text)
        warnings.warn(text, stacklevel=4)
