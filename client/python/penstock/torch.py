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

import collections
import functools
import inspect
import json
import os
import sys
import zlib
from typing import (Any, Callable, Dict, Iterator, List, Optional, Sequence, Union)

import torch
from torch import distributed
from torch.utils import data

from penstock import errors, map_style
from penstock.batch import Batch
from penstock.dataset import Dataset
from penstock.private_broker import environment
from penstock.reader import (Epoch, Reader, State, attach, no_epoch_left,
                             state_text)
from penstock.torch_ranks import group_size, meeting, ranks_of, world_size_of
from penstock.torch_rows import IterableRows, MapStyleRows, SpecRows, is_iterable, tell

_UNSET: Any = object()

# The loaders of map-style datasets in this process, by what names them.
_numbers: Dict[str, int] = collections.Counter()


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
      lists: of a spec: features whose rows differ in length, "bound" (the default),
        "padded" or "nested" (``Batch.torch``).
      device: None or "cpu": tensors over the batch's memory, which is held while one
        of them is alive (``Batch.torch``). Else copies on this device. A CUDA device
        reads the batch from shared memory (``Batch.cuda``); without libcuda.so.1 it goes
        through PyTorch's pinned memory, which a warning says.
      prefetch_to_device: how many batches are copied to a CUDA device before they are
        asked for (``Reader.prefetch_to_device``).
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
                 lists: Optional[str] = None,
                 device: Union[str, torch.device, None] = None,
                 prefetch_to_device: int = 2,
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
        self._ahead = prefetch_to_device
        self.pin_memory = bool(pin_memory)
        self._reader: Optional[Reader] = None
        self._left: Optional[int] = None  # the epoch of a loop that has not ended it
        self._epoch: Optional[int] = None  # what set_epoch has been told
        self._loaded: Optional[Dict[str, Any]] = None  # a state that no loop began at
        self._loop = 0  # the number of the newest loop
        self._running: Optional[int] = None  # a loop that has not ended
        self._places: Dict[int, State] = {}  # of loops that another one has left behind
        self._over: Optional[int] = None  # an epoch that an iterable has ended
        self._rows: Union[SpecRows, MapStyleRows, IterableRows]
        if isinstance(dataset, (type(None), str, bytes, os.PathLike, Dataset)) or (
                inspect.isfunction(dataset)):
            self._rows = SpecRows(dataset, lists or "bound", **given)
            self._attach()
            return
        if features is not None or lists is not None:
            raise TypeError(f"{'lists' if features is None else 'features'}: they are "
                            "those of a spec; a dataset's batches are nested as its "
                            "samples are")
        self._given = dict(given, device=device, prefetch_to_device=prefetch_to_device,
                           **options)
        self._rows = rows = (IterableRows if is_iterable(dataset) else MapStyleRows)(
            dataset, _name or _name_of(dataset), **given)
        # The attributes that PyTorch's has.
        self.dataset, self.batch_size = rows.dataset, rows.batch_size
        self.sampler, self.drop_last = rows.sampler, rows.drop_last
        self.num_workers, self.collate_fn = rows.num_workers, rows.collate_fn
        self.worker_init_fn, self.timeout = rows.worker_init_fn, rows.timeout
        self.generator, self.in_order = generator, True
        self.prefetch_factor = prefetch_factor
        self.persistent_workers = bool(persistent_workers)
        self.multiprocessing_context = multiprocessing_context

    def __reduce__(self) -> Any:
        """A copy begins its loops anew, with a copy of the dataset. TypeError: of a
        spec."""
        if isinstance(self._rows, SpecRows):
            raise TypeError("a penstock.torch.DataLoader of a spec is attached to its "
                            "broker: make another one instead of a copy")
        return functools.partial(DataLoader, **self._given), (self.dataset,)

    def __setattr__(self, name: str, value: Any) -> None:
        """ValueError: what a map-style dataset's loader was made with."""
        # No name of the module: a loop may end with the interpreter.
        if name == "batch_sampler" or name in self.__dict__ and name in (
                "dataset", "batch_size", "sampler", "drop_last"):
            raise ValueError(f"{name}: a DataLoader keeps what it was made with: make "
                             "another one")
        super().__setattr__(name, value)

    @property
    def reader(self) -> Reader:
        """The Reader; attaches it at the first use."""
        return self._attach() if self._reader is None else self._reader

    def _attach(self) -> Reader:
        ranks = ranks_of(self._options)
        source, options = self._rows.source(dict(self._options), ranks)
        numbers = {} if ranks is None else ranks.environment()
        try:
            with self._rows.raising(), environment(numbers):
                reader = attach(source, **options)
        except errors.DeadlineExceeded as error:
            if not getattr(self, "timeout", 0):
                raise
            raise errors.DeadlineExceeded(
                f"{error} (timeout={self.timeout} of the DataLoader; the processes of its "
                "dataset start in it, too)") from None
        try:
            self._features = (None if self._chosen is None else
                              reader.element_spec.chosen(self._chosen))
            self._rows.attached(reader)
            self._rows.on_gpu = self._prefetch(reader)
        except BaseException:
            reader.close()
            raise
        self._reader = reader
        self._ranks_known = (reader.world_size * reader.replicas > 1
                             or "world_size" in options)
        return reader

    def _prefetch(self, reader: Reader) -> bool:
        """Whether batches come to the device without PyTorch."""
        if self._device is None or self._device.type != "cuda" or torch.version.hip:
            return False
        try:
            reader.prefetch_to_device(self._device, self._ahead)
        except errors.NotFound as error:
            tell(f"penstock.torch.DataLoader: {error}: batches go to {self._device} by way "
                 "of PyTorch's pinned memory")
            return False
        return True

    def _steps(self) -> Optional[int]:
        """Steps of an epoch, where they are known before it is attached."""
        if self._reader is not None or not self._split:
            return None
        return self._rows.steps(world_size_of(self._options))

    def __len__(self) -> int:
        """Steps of an epoch; TypeError in dynamic delivery, of a stream, and of an
        iterable dataset without a length."""
        if isinstance(self._rows, IterableRows):
            return self._rows.length(world_size_of(self._options))
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
        if not self._ranks_known and world_size_of(self._options) > 1:
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
        if isinstance(self._rows, IterableRows):
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
        if isinstance(self._rows, SpecRows):
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
        if 1 < reader.world_size * reader.replicas == group_size():
            with meeting():
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
        """Has the sampler, and the number of steps; not to be iterated over."""
        return _BatchSampler(self)

    def state_dict(self) -> Dict[str, Any]:
        """As ``Reader.state_dict``. Inside of a map-style dataset's loop that has its
        last batch: of that epoch, of which no batch is left."""
        state = self.reader.state_dict()
        if self._ended() is not None:
            return dict(self._loaded or {})
        if isinstance(self._rows, IterableRows):
            if self._over is not None:
                return {**state, "epoch": self._over + 1, "row": 0, "owed": []}
            return {**state, **self._rows.state(state)}
        if self._rows.loop_is_epoch and self._left == self.reader.epoch and (
                self._split and state["epoch"] != self._left):
            state.update(epoch=self._left, row=self.reader.sample_count)
        return state

    def _ended(self) -> Optional[int]:
        """The epoch of a loaded state that leaves no batch of it."""
        if self._loaded is None or not isinstance(self._rows, MapStyleRows) or (
                self._loaded.get("row", 0) < self.reader.sample_count):
            return None
        return int(self._loaded["epoch"])

    def load_state_dict(self, state: State) -> None:
        """As ``Reader.load_state_dict``."""
        self._loaded = json.loads(state_text(state))
        if isinstance(self._rows, IterableRows):
            self._rows.begin_at(self._loaded.pop("iterators", ""), self._loaded["row"])
            state = self._loaded
        if self._reader is None:
            self._options["state"] = state_text(state)
        elif isinstance(self._rows, IterableRows):
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


class _BatchSampler:
    """What packages look at to learn whether rows are shuffled."""

    def __init__(self, loader: DataLoader):
        self._loader = loader
        self.sampler = getattr(loader, "sampler", None)
        self.batch_size = getattr(loader, "batch_size", None)
        self.drop_last = getattr(loader, "drop_last", False)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        raise errors.FailedPrecondition(
            "penstock.torch.DataLoader has no batches of indices, as the broker makes "
            "the batches: resume by state_dict() or set_epoch(); for code that skips "
            "batches, torch.utils.data.DataLoader(loader, batch_size=None)")


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
