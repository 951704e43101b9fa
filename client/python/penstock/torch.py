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
import os
import socket as sockets
import warnings
from typing import (Any, Callable, Dict, Iterator, List, Optional, Sequence, Set,
                    Tuple, Union)

import torch
from torch import distributed
from torch.utils import data

from penstock import _core, called, errors
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
              "in_order", "pin_memory_device"):
    _ELSEWHERE[_name] = _ELSEWHERE["num_workers"]
_ELSEWHERE["batch_sampler"] = _ELSEWHERE["generator"] = _ELSEWHERE["sampler"]

# What means nothing here: the broker decides it for all ranks.
_WITHOUT_MEANING = ("persistent_workers", "multiprocessing_context", "in_order",
                    "prefetch_factor", "pin_memory_device")

_UNSET: Any = object()

_loaders = 0  # of datasets of Python, in this process
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
        given = {name: value for name, value in locals().items()
                 if name in _ELSEWHERE and value is not None
                 and value is not _UNSET}
        unknown = set(options) - set(inspect.signature(attach).parameters)
        if unknown:
            raise TypeError("penstock.torch.DataLoader has no argument "
                            f"{sorted(unknown)[0]!r}")
        if batch_size is None:
            raise TypeError("batch_size=None: samples come as batches; take "
                            "batch_size=1, or collate_fn=lambda rows: rows[0]")
        global _loaders
        self._collate: Optional[Callable[[List[Any]], Any]] = None
        self._nested = not isinstance(
            dataset, (type(None), str, bytes, os.PathLike, Dataset))
        self._source = dataset
        self._options = options
        self._split = options.get("delivery", "split") == "split"
        self._chosen = features
        self._device = None if device is None else torch.device(device)
        self._reader: Optional[Reader] = None
        self._left: Optional[int] = None  # the epoch of a loop that has not ended it
        self._epoch: Optional[int] = None  # of set_epoch
        self._loop = 0  # the number of the newest loop
        if self._nested:
            self._number = _loaders
            _loaders += 1
            self._keep(dataset, given)
        elif given:
            name = next(iter(given))
            raise TypeError(f"penstock.torch.DataLoader of a spec has no {name!r}: "
                            + _ELSEWHERE[name])
        else:
            self._attach()

    def _keep(self, dataset: Any, given: Dict[str, Any]) -> None:
        """Sets the attributes that PyTorch's has."""
        batches = given.get("batch_sampler")
        if batches is not None:
            if type(batches) is not data.BatchSampler:
                raise TypeError(
                    "batch_sampler: wanted a torch.utils.data.BatchSampler; others may "
                    "give batches of any size: give sampler and batch_size")
            given = {**given, "sampler": batches.sampler,
                     "batch_size": batches.batch_size,
                     "drop_last": batches.drop_last}
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
        self.dataset = dataset
        self.batch_size = given.get("batch_size", 1)
        if not isinstance(self.batch_size, int) or self.batch_size < 1:
            raise ValueError(f"batch_size: wanted a whole number from 1, found "
                             f"{self.batch_size!r}")
        self.sampler = given.get("sampler")
        self.drop_last = bool(given.get("drop_last", False))
        self.num_workers = given.get("num_workers", 0)
        self.collate_fn = given.get("collate_fn")
        self.pin_memory = bool(given.get("pin_memory", False))
        self.generator = given.get("generator")
        self.timeout = given.get("timeout", 0)
        self.worker_init_fn = given.get("worker_init_fn")
        self._shuffle = bool(given.get("shuffle", False))
        self._seed = given.get("seed")
        self._max_bytes = given.get("max_bytes")
        self._on_error = given.get("on_error", "fail")
        if self._shuffle and self.sampler is not None:
            raise TypeError("shuffle and sampler both give the order: give one")
        if self.collate_fn is not None and (
                self.collate_fn is not data.default_collate):
            self._collate = self.collate_fn
        _tell(f"penstock.torch.DataLoader: {', '.join(meaningless)} "
              f"{'means' if len(meaningless) == 1 else 'mean'} nothing here: the "
              "broker decides it for all ranks"
              if (meaningless := [name for name in _WITHOUT_MEANING if name in given])
              else "")
        self._set_order(self.sampler)

    def _set_order(self, sampler: Any) -> None:
        """Sets ``_order``, what the broker asks for the order; None: it makes one."""
        self._order = sampler
        if isinstance(sampler, data.DistributedSampler):
            self._shuffle = sampler.shuffle
            self._seed = sampler.seed if self._seed is None else self._seed
            # Validation that drops the last rows comes back to them in another loader.
            self._order = (range(sampler.total_size)
                           if sampler.drop_last and not sampler.shuffle else None)
            self._sampler_epoch = sampler.epoch
            _tell("penstock.torch.DataLoader: the ranks share each epoch without the "
                  "DistributedSampler, and no row comes twice to make their parts equal")
        elif type(sampler) is data.SequentialSampler:
            self._order = None
        elif type(sampler) is data.RandomSampler and not sampler.replacement and (
                sampler.num_samples == len(self.dataset)):
            self._shuffle, self._order = True, None

    @property
    def reader(self) -> Reader:
        """The Reader; attaches it at the first use."""
        return self._attach() if self._reader is None else self._reader

    def _attach(self) -> Reader:
        ranks = _ranks(self._options)
        options = dict(self._options)
        source = self._source
        if self._nested:
            source, options = self._spec(options, ranks)
        if ranks is not None:
            options.update(rank=ranks.rank, world_size=ranks.world_size,
                           local_world_size=ranks.local_world_size)
        reader = attach(source, **options)
        self._features = (None if self._chosen is None else
                          reader.element_spec.chosen(self._chosen))
        self._tree = called.tree_of(reader.structure, reader.element_spec)
        self._reader = reader
        self._ranks_known = reader.world_size > 1 or "world_size" in options
        if self._nested and self._split and not self.drop_last:
            left = reader.sample_count % (self.batch_size * reader.world_size)
            _tell(f"penstock.torch.DataLoader: the last batch of an epoch has {left} "
                  f"rows, fewer than the {reader.world_size} ranks: some get a batch of "
                  "no rows, whose mean loss is NaN. drop_last=True leaves it out"
                  if 0 < left < reader.world_size else "")
        return reader

    def _spec(self, options: Dict[str, Any],
              ranks: Optional[called.Ranks]) -> Tuple[Dataset, Dict[str, Any]]:
        """The spec of the dataset, and options of ``attach``."""
        seed = self._seed
        if seed is None:
            seed = 0 if self.generator is None else self.generator.initial_seed()
        name = f"{called.type_name(self.dataset)}-{self._number}-{called.launch(ranks)}"
        socket = options.pop("socket", None) or called.own_socket(ranks)
        spec = called.spec_of(
            name, socket, self.dataset, sampler=self._order,
            worker_init_fn=self.worker_init_fn, pickled=self._collate is not None,
            max_bytes=self._max_bytes, processes=self.num_workers or None)
        if self._shuffle:
            spec = spec.shuffle(seed=seed % (1 << 63))
        spec = spec.seed(seed % (1 << 63)).batch(
            per_rank=self.batch_size, last="drop" if self.drop_last else "partial"
        ).on_error(self._on_error).repeat(None)
        # As many rows under way as PyTorch has, so that a slow one holds up no other.
        makers = self.num_workers or len(os.sched_getaffinity(0))
        spec = spec.prefetch(min(max(2 * makers, 2), 8))
        if self.timeout and "timeout_s" not in options:
            options["timeout_s"] = self.timeout
        return spec, {"job": name, **options, "socket": socket}

    def __len__(self) -> int:
        """Steps of an epoch; TypeError in dynamic delivery and of a stream."""
        if self._reader is None and self._split:
            rows = len(self.dataset if self._order is None else self._order)
            batch = self.batch_size * _world_size(self._options)
            return int(rows // batch if self.drop_last else -(-rows // batch))
        return len(Epoch(self.reader, self.reader.epoch))

    def __iter__(self) -> Iterator[Any]:
        if data.get_worker_info() is not None:
            raise errors.FailedPrecondition(
                "penstock.torch.DataLoader in a worker of PyTorch's: give that one "
                "num_workers=0; processes of the broker make the samples")
        if self._reader is None and self._split and len(self) == 0:
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
        sampler = getattr(self, "sampler", None)
        if isinstance(sampler, data.DistributedSampler) and (
                sampler.epoch != self._sampler_epoch):
            self._epoch = self._sampler_epoch = sampler.epoch
        # As PyTorch's: a new loop is a new epoch.
        anew = self._nested and self._left == reader.epoch
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
        if self._nested and self._features is None:
            found: Dict[str, torch.Tensor] = {}
            stats = self.reader.stats()
            # A loop that keeps its batches gets copies: the broker needs the memory.
            copies = stats["held"] >= stats["hold_max"]

            def tensor(name: str) -> torch.Tensor:
                if not found:
                    found.update(self._tensors(batch))
                return found[name].clone() if copies else found[name]

            result = called.rebuild(self._tree, batch.__getitem__, tensor)
            return result if self._collate is None else self._collate(result)
        tensors = self._tensors(batch)
        if self._features is None:
            return tensors
        return tuple(tensors[name] for name in self._features)

    def _tensors(self, batch: Batch) -> Dict[str, torch.Tensor]:
        tensors = batch.torch()
        if self._nested and self.pin_memory and torch.cuda.is_available():
            tensors = {name: tensor.pin_memory() for name, tensor in tensors.items()}
        if self._device is None or self._device.type == "cpu":
            return tensors
        if self._device.type == "cuda":
            # PyTorch keeps the pinned memory until the copy is done.
            return {name: tensor.pin_memory().to(self._device,
                                                 non_blocking=True)
                    for name, tensor in tensors.items()}
        return {name: tensor.to(self._device)
                for name, tensor in tensors.items()}

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


def _ranks(options: Dict[str, Any]) -> Optional[called.Ranks]:
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
def _gathered(rank: int, world_size: int) -> called.Ranks:
    places: List[Any] = [None] * world_size
    distributed.all_gather_object(places, (sockets.gethostname(), os.getpid()))
    here = [place for place in places if place[0] == places[rank][0]]
    return called.Ranks(rank, world_size, len(here), "-".join(map(str, places[0])))


def _tell(text: str) -> None:
    """Warns of it, once in this process."""
    if text and text not in _told:
        _told.add(text)
        warnings.warn(text, stacklevel=4)
