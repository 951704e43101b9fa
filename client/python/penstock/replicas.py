"""One process whose devices are several ranks: MirroredStrategy's replicas, the local
devices of JAX.

    with penstock.replicas("train.yaml", jax.local_device_count()) as replicas:
        for batches in replicas:  # of a step, in the order of the devices
            ...
"""

from __future__ import annotations

from typing import (Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple,
                    Union)

import numpy as np

from penstock import _core
from penstock.batch import Batch
from penstock.dataset import Dataset
from penstock.errors import FailedPrecondition
from penstock.reader import (InputContext, Reader, State, attach, index,
                             no_epoch_left)
from penstock.spec_values import Path


class Replicas:
    """Several ranks of one process, step by step; made by ``penstock.replicas``. One
    thread at a time uses it."""

    def __init__(self, readers: Sequence[Reader]):
        self._readers = tuple(readers)
        self._taken: List[Batch] = []  # of a step whose others have not come

    @property
    def readers(self) -> Tuple[Reader, ...]:
        """Of the replicas, in the order of their ranks."""
        return self._readers

    def __iter__(self) -> Iterator[Tuple[Batch, ...]]:
        """An epoch's steps (after a ``break``, the rest of that epoch): the batches of
        all replicas, equally many of each; where rows run out, some have none. The
        next ``for`` is the next epoch. FailedPrecondition: there is none."""
        epochs = [next(reader.epochs(), None) for reader in self._readers]
        if None in epochs:
            raise no_epoch_left(self._readers[0])
        steps = [iter(epoch) for epoch in epochs]  # type: ignore[arg-type]
        while self._take(steps):
            step, self._taken = tuple(self._taken), []
            yield step
            del step
        # The others have not been asked for the end.
        for reader in self._readers[1:]:
            if reader.epoch == epochs[1].number:  # type: ignore[union-attr]
                reader._take()

    def _take(self, steps: List[Iterator[Batch]]) -> bool:
        """Takes what is missing of a step; False: there is none. An exception (a
        time-out, Ctrl-C) leaves what has come to the next loop."""
        while len(self._taken) < len(steps):
            batch = next(steps[len(self._taken)], None)
            if batch is None:
                return False
            self._taken.append(batch)
        return True

    def __len__(self) -> int:
        """Steps of an epoch."""
        return self._readers[0].steps_per_epoch

    @property
    def epoch(self) -> int:
        """The next step's epoch, from 0."""
        return self._readers[0].epoch

    @property
    def epoch_count(self) -> Optional[int]:
        """Epochs of the job; None: forever."""
        return self._readers[0].epoch_count

    def state_dict(self) -> Dict[str, Any]:
        """As ``Reader.state_dict``, between steps."""
        return self._readers[-1].state_dict()  # the last to take its batch

    def load_state_dict(self, state: State) -> None:
        """As ``Reader.load_state_dict``, of all replicas."""
        self._taken = []
        for reader in self._readers:
            reader.load_state_dict(state)

    def close(self) -> None:
        """As ``Reader.close``."""
        self._taken = []
        for reader in self._readers:
            reader.close()

    def __enter__(self) -> "Replicas":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def replicas(dataset: Union[Path, Dataset, None, Callable[[InputContext], Any]],
             count: int, *, process: Optional[int] = None,
             processes: Optional[int] = None, **options: Any) -> Replicas:
    """Attaches ``count`` ranks of this process.

    Args:
      dataset: as ``penstock.attach`` takes it.
      count: replicas of this process, as many in each process.
      process, processes: the number of this process, and how many there are. None:
        from the launcher, else 0 of 1.
      **options: as ``penstock.attach``, except rank and world_size. PENSTOCK_REPLICAS
        does not count: a process is several ranks, not a part of one.

    Raises:
      FailedPrecondition: a delivery other than split.
      Others as of ``penstock.attach``.
    """
    count = index("count", count, 1)
    if options.get("delivery") not in (None, "split"):
        raise FailedPrecondition("delivery: replicas divide each step: wanted split")
    _, launched, rank, local, *_ = _core.launch()
    if processes is None:
        processes = launched
    if process is None:
        process = rank
    options.setdefault("replicas", 1)
    options.setdefault("local_world_size", count * min(local, processes))
    agree = options.pop("agree", None)
    readers: List[Reader] = []
    try:
        for replica in range(count):
            readers.append(attach(dataset, count * process + replica, count * processes,
                                  agree=False, **options))
        # Each process for all of its ranks.
        readers[0]._meet(agree, process, processes)
    except BaseException:
        for reader in readers:
            reader.close()
        raise
    return Replicas(readers)


def global_arrays(batches: Sequence[Batch], sharding: Any) -> Dict[str, Any]:
    """``jax.Array``s by name, of the global batch, whose rows ``sharding`` divides.

    Args:
      batches: those of a step of this process's replicas, of equally many rows each
        (``last="drop"`` or ``"pad"``).
      sharding: a ``jax.sharding.Sharding`` whose first dimension is the rows; this
        process's devices have those of its replicas.

    Raises:
      ValueError: different numbers of rows, or rows that other processes have.
    """
    import jax

    rows = {batch.rows for batch in batches}
    if len(rows) != 1:
        raise ValueError(f"the replicas have {sorted(rows)} rows; a global array wants "
                         'equally many: .batch(..., last="drop") or "pad"')
    each, = rows
    reader_rows = each * len(batches)
    first = jax.process_index() * reader_rows
    total = jax.process_count() * reader_rows

    def of(name: str) -> Any:
        arrays = [batch[name] for batch in batches]

        def part(place: Tuple[slice, ...]) -> np.ndarray:
            begin, end, _ = place[0].indices(total)
            begin, end = begin - first, end - first
            if begin < 0 or end > reader_rows:
                raise ValueError("the sharding gives this process's devices rows of "
                                 "other processes")
            pieces = [array[max(begin - at, 0):max(end - at, 0)]
                      for at, array in zip(range(0, reader_rows, each), arrays)
                      if begin < at + each and at < end]
            whole = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
            return whole[(slice(None), *place[1:])]

        return jax.make_array_from_callback(
            (total, *arrays[0].shape[1:]), sharding, part)

    return {name: of(name) for name in batches[0]}
