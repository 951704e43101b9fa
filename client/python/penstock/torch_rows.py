"""What penstock.torch.DataLoader is of: a spec, a map-style dataset, an iterable one."""

from __future__ import annotations

import base64
import collections
import contextlib
import copy
import json
import os
import struct
import weakref
from typing import (Any, Callable, ContextManager, Dict, List, Optional, Set, Tuple)

import torch
from torch.utils import data

from penstock import map_style
from penstock.batch import Batch, check_lists
from penstock.dataset import Dataset
from penstock.reader import Reader
from penstock.torch_ranks import is_alone, own_rank, world_size_of

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

_told: Set[str] = set()


class Rows:
    """What a loader asks of its kind of dataset."""

    # Whether the next loop after a ``break`` is of the next epoch.
    loop_is_epoch = True
    # Whether batches are on the loop's GPU.
    on_gpu = False

    def source(self, options: Dict[str, Any],
               ranks: Optional[map_style.Ranks]) -> Tuple[Any, Dict[str, Any]]:
        """What ``attach`` takes: a spec, and options."""
        raise NotImplementedError

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
        raise NotImplementedError


class SpecRows(Rows):
    """Rows of a spec, which says all of them: batches are tensors by feature."""

    loop_is_epoch = False

    def __init__(self, spec: Any, lists: str = "bound", **given: Any):
        self._lists = check_lists(lists)
        for name in given:
            raise TypeError(f"penstock.torch.DataLoader of a spec has no {name!r}: "
                            + _ELSEWHERE[name])
        self._spec = spec

    def source(self, options: Dict[str, Any],
               ranks: Optional[map_style.Ranks]) -> Tuple[Any, Dict[str, Any]]:
        return self._spec, options

    def result(self, batch: Batch, reader: Reader,
               placed: Callable[[torch.Tensor], torch.Tensor]) -> Any:
        if self.on_gpu:
            return batch.cuda(lists=self._lists)
        tensors = batch.torch(self._lists)
        return {name: placed(tensor) for name, tensor in tensors.items()}


class ObjectRows(Rows):
    """A dataset of Python, with PyTorch's arguments: batches are what collate_fn makes
    of its samples."""

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
        self.num_workers = num_workers or 0
        self.collate_fn = collate_fn or (
            data.default_convert if batch_size is None else data.default_collate)
        processors = os.cpu_count() or 1
        tell(f"penstock.torch.DataLoader: num_workers: {num_workers} processes on "
              f"{processors} processors: more than these help only a dataset that waits"
              if self.num_workers > processors else "")
        self.worker_init_fn, self.timeout = worker_init_fn, timeout
        self._max_bytes, self._on_error = max_bytes, on_error
        self._per_rank = batch_size or 1
        if batch_size is None:
            self._collate: Any = map_style.OneSample(self.collate_fn)
        else:
            self._collate = self.collate_fn
        names = sorted(meaningless)
        tell(f"penstock.torch.DataLoader: {', '.join(names)} "
              f"{'means' if len(names) == 1 else 'mean'} nothing here: the "
              "broker decides it for all ranks" if names else "")

    def source(self, options: Dict[str, Any],
               ranks: Optional[map_style.Ranks]) -> Tuple[Any, Dict[str, Any]]:
        world_size = world_size_of(options)
        seed = self._seed()
        name = f"{self.name}-{map_style.launch(ranks)}"
        if is_alone(options):  # and maybe each of them is
            name += f"-{own_rank()}"
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

    def _whole(self, batch: Batch, reader: Reader, placed: Callable[[torch.Tensor], torch.Tensor]
               ) -> Callable[[int], torch.Tensor]:
        """Gives the first bytes of a batch as a tensor."""

        def whole(size: int) -> torch.Tensor:
            if self.on_gpu:
                return batch.cuda()["batch"][0, :size]
            tensor = batch.torch()["batch"][0, :size]
            stats = reader.stats()
            # A loop that keeps its batches gets copies: the broker needs the memory.
            if stats["held"] >= stats["hold_max"]:
                tensor = tensor.clone()
            return placed(tensor)

        return whole


class MapStyleRows(ObjectRows):
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
        if reader.world_size > 1 and reader.delivery == "split" and (
                isinstance(self.sampler, data.SequentialSampler)):
            tell(f"penstock.torch.DataLoader: {reader.world_size} ranks divide the rows "
                 "of a loader without a sampler, where PyTorch gives all of them to each "
                 "rank; for that: rank=0, world_size=1")
        if self.drop_last or reader.delivery != "split":
            return
        left = reader.sample_count % (self._per_rank * reader.world_size)
        tell(f"penstock.torch.DataLoader: the last batch of an epoch has {left} "
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


class IterableRows(ObjectRows):
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
        if options.get("on_rank_death") == "shrink":
            raise ValueError("on_rank_death: wanted wait or fail for an IterableDataset, "
                             "whose batches are of one rank each")
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
        tell("penstock.torch.DataLoader: the ranks share each epoch without "
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
            map_style.warn(
                f"len() of the loader is {self._said_length}, by that of "
                f"{type(self.dataset).__name__}, and batch {batch.step + 1} has come: "
                "each of num_workers processes iterates over all of a dataset that does "
                "not divide itself by get_worker_info()")
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
        tell(f"penstock.torch.DataLoader: {type(self.dataset).__name__} has no "
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
        if sampler is not None and not hasattr(type(sampler), "__len__"):
            raise TypeError(f"{type(sampler).__name__} has no __len__: the ranks know their "
                            "steps before an epoch begins. Give it one, or make an "
                            "IterableDataset of it")
        own = getattr(sampler, "generator", None)
        if generator is None and isinstance(own, torch.Generator):
            self._generator = own
        self._distributed: Any = None
        # One that has a set_epoch, which its attribute `epoch` shows.
        self._of_epochs = sampler if hasattr(sampler, "set_epoch") else None
        self._epoch = getattr(sampler, "epoch", None)
        if isinstance(sampler, data.DistributedSampler):
            self._distributed = sampler
            self._seed = sampler.seed if seed is None else seed
        if type(sampler) is data.DistributedSampler:
            self.shuffle = sampler.shuffle
            # Validation that drops the last rows comes back to them in another loader.
            self._sampler = (range(sampler.total_size)
                             if sampler.drop_last and not sampler.shuffle else None)
            tell("penstock.torch.DataLoader: the ranks share each epoch without the "
                  "DistributedSampler, and no row comes twice to make their parts equal")
        elif type(sampler) is data.SequentialSampler and len(sampler) == len(dataset):
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
        """The epoch that the sampler was set to since the last call."""
        epoch = getattr(self._of_epochs, "epoch", None)
        if not isinstance(epoch, int) or epoch == self._epoch:
            return None
        self._epoch = epoch
        return epoch


def _seed_of(seed: Optional[int], generator: Optional[torch.Generator]) -> int:
    if seed is None:
        seed = 0 if generator is None else generator.initial_seed()
    return seed % (1 << 63)


def is_iterable(dataset: Any) -> bool:
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


def tell(text: str) -> None:
    """Warns of it, once in this process."""
    if text and text not in _told:
        _told.add(text)
        map_style.warn(text)
