"""One rank of a job: attach, iterate, checkpoint."""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import numbers
import operator
import os
import sys
import time
import warnings
import weakref
from typing import (Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, TypeVar,
                    Union)

import numpy as np

from penstock import _core, agreement, errors, rendezvous
from penstock.batch import Batch, Features, Holds, TensorSpec, device_number
from penstock.dataset import Dataset
from penstock.spec_values import Path

State = Union[str, Mapping[str, Any]]
Text = TypeVar("Text", bound=Optional[str])


class EndOfEpoch(Exception):
    """Raised by ``Reader.next``: the epoch is over; call again for the next."""


class EndOfData(Exception):
    """Raised by ``Reader.next``: the last epoch is over."""


class Epoch:
    """The batches of one epoch, to be iterated once. After a loop that is left early,
    the next loop continues with the next batch."""

    def __init__(self, reader: "Reader", number: int):
        self._reader = reader
        self._number = number
        self._joined = False

    @property
    def number(self) -> int:
        """From 0."""
        return self._number

    def __iter__(self) -> Iterator[Batch]:
        # It keeps no batch, as a generator's variable would.
        return iter(self._take, None)

    def _take(self) -> Optional[Batch]:
        core = self._reader._core
        if core.epoch != self._number:
            raise errors.FailedPrecondition(
                f"epoch {self._number} is over: ask `epochs()` for the next")
        batch = self._reader._take()
        if batch is not None and not self._joined:
            # A rank that joins others learns their epoch from its first batch.
            self._number = core.epoch
            self._joined = True
        return batch

    def tuples(self, *features: str) -> Iterator[Tuple[np.ndarray, ...]]:
        """Yields tuples of these features' arrays: ``for x, y in
        epoch.tuples("image", "label")``."""
        for batch in self:
            yield tuple(batch[name] for name in features)
            del batch

    def __len__(self) -> int:
        """Steps of a whole epoch, the same on every rank. TypeError in dynamic
        delivery, where faster ranks get more, and of a stream."""
        if self._reader.delivery == "dynamic":
            raise TypeError(
                "in dynamic delivery an epoch has no length: a faster rank gets "
                "more batches")
        if self._reader.steps_per_epoch == 0:
            raise TypeError("a stream is as long as its producers make it")
        return self._reader.steps_per_epoch


@dataclasses.dataclass(frozen=True)
class InputContext:
    """What ``tf.distribute.InputContext`` tells a function that makes the dataset:
    here each rank is a replica with an input pipeline of its own."""

    num_input_pipelines: int
    input_pipeline_id: int
    num_replicas_in_sync: int

    def get_per_replica_batch_size(self, global_batch_size: int) -> int:
        """ValueError: the replicas cannot divide it evenly."""
        if global_batch_size % self.num_replicas_in_sync:
            raise ValueError(f"a global batch of {global_batch_size} rows is not divisible "
                             f"by {self.num_replicas_in_sync} replicas")
        return global_batch_size // self.num_replicas_in_sync


class Reader:
    """One rank of a job; made by ``penstock.attach``.

    One thread at a time uses it. A forked child cannot use its parent's: calls raise
    ``FailedPrecondition``, and the parent's batches read as zeros. Calls that talk to
    the broker also raise DeadlineExceeded (``timeout_s``) and Unavailable
    (``reconnect_s``); ``next`` and loops also raise why the job failed, and Aborted
    when the rank was evicted, fenced or stopped.
    """

    def __init__(self, core: _core.Reader, delivery: str,
                 features: Optional[Sequence[str]] = None,
                 hosts: Optional[_Hosts] = None):
        self._core = core
        self._hosts = hosts
        self._chosen = features
        self._delivery = delivery
        self._ended = False
        self._closed = False
        self._next_calls = 0  # calls of the core's next
        self._holds = Holds(self.prefetch_to_device)
        self._read_spec()

    def _read_spec(self) -> None:
        self._features = Features({
            name: TensorSpec(shape, dtype)
            for name, dtype, shape in self._core.element_spec()}, self._chosen)

    # ---- batches

    def next(self, timeout_s: Optional[float] = None) -> Batch:
        """The next batch, where a loop over ``epochs()`` does not fit.

        Raises EndOfEpoch once after the last batch of each epoch, EndOfData after
        the last epoch, DeadlineExceeded if no batch is ready within ``timeout_s``
        (0 or less: does not wait; None: attach's), and ResourceExhausted when the
        rank holds all batches it may hold."""
        if timeout_s is not None:
            timeout_s = seconds("timeout_s", timeout_s, least=-math.inf)
            timeout_s = max(timeout_s, 0.0)
        core = self._next(timeout_s)
        if core is None:
            raise EndOfEpoch
        if core is False:
            raise EndOfData
        return Batch(core, self._features, self._holds)

    def _take(self) -> Optional[Batch]:
        """The next batch; None at the end of the epoch and of the data."""
        core = self._next(None)
        return Batch(core, self._features, self._holds) if core else None

    def _next(self, timeout_s: Optional[float]) -> Any:
        """The core's batch; None at the end of the epoch, False of the data."""
        self._holds.let_go()
        self._next_calls += 1
        releases: Optional[Iterator[bool]] = None
        while True:
            try:
                core = self._core.next(timeout_s)
                break
            except errors.ResourceExhausted:
                if self._holds.wait_for_oldest():
                    continue
                releases = releases or _releases()
                if not next(releases, False):
                    raise
        if core is False:
            self._ended = True
        return core

    def prefetch_to_device(self, device: Any = None, size: int = 2) -> None:
        """From now on each batch is copied to a GPU when it is taken, and up to ``size``
        that are ready before they are asked for; ``Batch.cuda`` and ``Batch.to_device``
        give them.

        The GPU reads shared memory, which the driver pins; where it cannot, batches go by
        way of pinned buffers, which a RuntimeWarning says. Those ahead count as not
        taken: if this process dies, its successor gets them, and a state leaves them to
        the next batch. In dynamic delivery one is ready at a time. Memory on the GPU: the
        largest batch times ``size + 2``, and what the loop keeps beyond that; ``stats``
        has it.

        Args:
          device: "cuda", "cuda:1", 1; None: PyTorch's current one, else 0.
          size: 0 to 32.

        Raises:
          ValueError: no GPU of CUDA.
          NotFound: no driver, or no such GPU.
          FailedPrecondition: the reader has a GPU already.
        """
        found = device_number(device)
        why = self._core.prefetch_to_device(found, index("size", size, 0, 32))
        self._holds.device = found
        if why:
            warnings.warn(f"penstock: batches go to cuda:{found} by way of pinned buffers, "
                          f"one copy more: {why}", RuntimeWarning, stacklevel=2)

    def __iter__(self) -> Iterator[Batch]:
        """The remaining batches of all epochs."""
        for epoch in self.epochs():
            yield from epoch

    def epochs(self) -> Iterator[Epoch]:
        """The remaining epochs: ``for epoch in reader.epochs(): for batch in epoch:
        ...``. Endless if the spec says ``epochs: forever``. FailedPrecondition: the
        reader is closed, or no batch of the previous epoch was taken: an epoch
        cannot be passed over."""
        if self._closed:
            raise errors.FailedPrecondition("the reader is closed")
        while not self._ended and (self.epoch_count is None
                                   or self.epoch < self.epoch_count):
            epoch = Epoch(self, self.epoch)
            calls = self._next_calls
            yield epoch
            if self._next_calls == calls and self.epoch == epoch.number:
                raise errors.FailedPrecondition(
                    f"nothing was taken of epoch {epoch.number}, so it is still the "
                    "next one: iterate it, or attach with a `state` that begins "
                    "later")

    def fileno(self) -> int:
        """A descriptor that is readable when a batch may have become ready, for
        event loops: then call ``next(0)``, which may still raise
        DeadlineExceeded. The reader owns it."""
        return self._core.fileno()

    # ---- what the job is

    @property
    def element_spec(self) -> Features:
        """``{name: TensorSpec(shape of one row, dtype)}``; a size is None where
        batches differ (``batch.by_part``)."""
        return self._features

    @property
    def delivery(self) -> str:
        """One of "split", "dynamic", "broadcast" or "independent", as `attach` was told;
        under `shard: off` a split is a broadcast."""
        return self._delivery

    @property
    def job(self) -> str:
        """Its name, as `penstock jobs` shows it."""
        return self._core.job

    @property
    def rank(self) -> int:
        """The rank this reader attached with, also after a shrink."""
        return self._core.rank

    @property
    def world_size(self) -> int:
        """Ranks of the job; with ``on_rank_death="shrink"``, those that are left."""
        return self._core.world_size

    @property
    def replica(self) -> int:
        """The number of this process among those that are its rank."""
        return self._core.replica

    @property
    def replicas(self) -> int:
        """Processes that are one rank: each gets the same batches."""
        return self._core.replicas

    @property
    def incarnation(self) -> int:
        """The number of the job's incarnation: a reset or an attach with a state
        begins another."""
        return self._core.incarnation

    @property
    def sample_count(self) -> int:
        """Records of the dataset; 0 for a stream."""
        return self._core.sample_count

    @property
    def steps_per_epoch(self) -> int:
        """The same on every rank; 0 for a stream."""
        return self._core.steps_per_epoch

    @property
    def epoch(self) -> int:
        """The next batch's epoch, from 0; ``epoch_count`` at the end."""
        return self._core.epoch

    @property
    def epoch_count(self) -> Optional[int]:
        """Epochs of the job; None: forever."""
        return self._core.epoch_count or None

    @property
    def fingerprint(self) -> Dict[str, str]:
        """What all hosts of the job must have alike, by name; ``#`` and a digest stand for
        a long value. Ranks of several hosts have compared it when they attached."""
        return dict(json.loads(self._core.fingerprint("")))

    def _meet(self, agree: Any, number: int, size: int) -> None:
        """Compares hosts as ``attach`` does by ``agree``, as one of ``size`` processes, each of
        which is several ranks. All of them call it."""
        if self._hosts is not None:
            self._hosts.agree, self._hosts.place = agree, (number, size)
            self._hosts.compare(self._core)

    def stats(self) -> Dict[str, Union[int, float]]:
        """Counts since attach: ``batches`` taken, ``rows`` in them (without padding),
        ``left_out`` (rows that ``on_error: skip`` left out of them), ``wait_s``
        (seconds spent with nothing ready), ``waits``, ``held`` (batches held now),
        ``hold_max``, ``skipped`` (batches missed, ``lag="skip"``), ``redelivered``,
        ``reconnects``; bytes of ``prefetch_to_device`` now: ``device_bytes`` on the GPU,
        ``registered_bytes`` of shared memory and ``staging_bytes`` of its own, pinned."""
        return self._core.stats()

    # ---- checkpoint, elastic runs, end

    def state_dict(self) -> Dict[str, Any]:
        """The job's position after the last batch that was returned, for the
        checkpoint: JSON types only. In split and broadcast every rank gets the same
        after the same step; in dynamic, give one rank's to all."""
        state: Dict[str, Any] = json.loads(self._core.state())
        return state

    def load_state_dict(self, state: State) -> None:
        """Continues at a state, with the same rank and world size. Every rank calls
        it; the first call opens a new incarnation of the job."""
        self.reset(self.rank, self.world_size, state)

    def reset(self, rank: int, world_size: int, state: State,
              local_world_size: Optional[int] = None) -> None:
        """Leaves this incarnation of the job and joins the one that begins at
        ``state``, as ``rank`` of ``world_size``. An elastic trainer calls it on every
        rank when the ranks have changed. The first call fences the old incarnation:
        ranks still in it get Aborted. Batches that are held stay valid. Ranks of several
        hosts compare them again."""
        self._core.reset(index("rank", rank, 0),
                         index("world_size", world_size, 1),
                         number("local_world_size", local_world_size, 1, 0),
                         state_text(state))
        if self._hosts is not None:
            self._hosts.compare(self._core)
        self._ended = False
        self._read_spec()

    def stop_job(self, now: bool = False) -> None:
        """Ends the job for all of its ranks, after the last step that any rank was
        given; ``now``: at once, with Aborted."""
        self._core.stop_job(now)

    def set_weights(self, weights: Optional[Sequence[float]], *, epoch: Optional[int] = None,
                    row: Optional[int] = None) -> Tuple[int, int]:
        """Gives the mix that the dataset is other weights, one for each part, for all
        ranks: from the first step that nobody has begun to make, or from ``row`` (0) of
        ``epoch`` (0) on, if one of them is given. One process calls it. The change is a
        part of every state from then on. Returns the epoch and the row from which the
        weights hold.

        With ranks on several hosts, all ranks call it, and agree on the row: the first
        that is free on all hosts, a few steps ahead. ``None`` takes the weights of the
        rank that proposes some. Or name a row that lies ahead, the same on each host."""
        if (epoch is row is None and self._core.several_hosts and self._hosts is not None
                and self._delivery == "split"):
            return self._hosts.change_weights(self._core, weights)
        if epoch is None and row is not None:
            epoch = 0
        self._core.set_weights(_weights(weights),
                               -1 if epoch is None else index("epoch", epoch, 0),
                               index("row", 0 if row is None else row, 0))
        # A state has all changes, in the order of their rows, and no new one can come
        # before another.
        epoch, row = self.state_dict()["weights"][-1][:2]
        return epoch, row

    def __repr__(self) -> str:
        if self._closed:
            return "<penstock.Reader, closed>"
        return (f"<penstock.Reader of job {self.job!r}: rank {self.rank} of "
                f"{self.world_size}, {self.delivery}>")

    def close(self) -> None:
        """Leaves the job; waits for the events of ``hold_until``. Batches and arrays
        that are alive become private copies. No effect the second time."""
        while self._holds.wait_for_oldest():
            pass
        self._core.close()
        self._closed = True

    def __enter__(self) -> "Reader":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def _weights(weights: Any) -> List[float]:
    try:
        return [float(weight) for weight in weights]
    except (TypeError, ValueError):
        raise TypeError(f"weights: wanted a number for each part, got {weights!r}") from None


class _Hosts:
    """By what the ranks of several hosts meet."""

    def __init__(self, agree: Any, options: Mapping[str, Any]):
        self.agree = agree
        self.place: Optional[Tuple[int, int]] = None  # among how many; None: the ranks
        self._options = options
        self._wait_s = options["wait_s"]

    def compare(self, core: _core.Reader) -> None:
        if not core.several_hosts:
            return
        others = self._rendezvous(core)
        if others is not None:
            agreement.compare(
                others, core, os.fsdecode(self._options["socket"] or "")
                or os.environ.get("PENSTOCK_SOCKET", ""), self._wait_s)
        elif self.agree is None and not os.environ.get("PENSTOCK_AGREE") and (
                core.rank == core.replica == 0):
            warnings.warn(
                "the ranks are on several hosts, and have not compared what these have (files, "
                "spec, seed, version): they found nothing to meet by. Attach after "
                "torch.distributed, Horovod or jax.distributed is initialised or mpi4py is "
                "imported, or give `agree='file:/FOLDER'`, a folder that all hosts share; "
                "`agree=False` says that they are not to", stacklevel=3)

    def excuse(self, error: Exception) -> None:
        """Of an attach that failed."""
        launcher, processes, this, local, *_ = _core.launch()
        given, each = self._options, replicas_of(self._options)
        if given["rank"] >= 0:
            this = given["rank"] * each + max(given["replica"], 0)
        if given["world_size"]:
            processes = given["world_size"] * each
        if given["local_world_size"]:
            local = given["local_world_size"] * (given["local_replicas"] or each)
        if processes == local or isinstance(error, errors.AlreadyExists):
            return
        try:
            others = rendezvous.find(self.agree, this, processes, self._name(), self._job())
        except (errors.Error, TypeError):
            return
        if others is not None:
            agreement.excuse(others, error)

    def change_weights(self, core: _core.Reader, weights: Any) -> Tuple[int, int]:
        others = self._rendezvous(core)
        if others is None:
            raise errors.FailedPrecondition(
                f"job {core.job!r} has ranks on other hosts, with which this one has nothing to "
                "agree by: attach with `agree`, or name an epoch and a row that lie ahead, the "
                "same on each host")
        return agreement.agree_on_weights(
            others, core, None if weights is None else _weights(weights), self._wait_s)

    def _rendezvous(self, core: _core.Reader) -> Optional[rendezvous.Rendezvous]:
        number, size = self.place or (core.rank * core.replicas + core.replica,
                                      core.world_size * core.replicas)
        return rendezvous.find(self.agree, number, size, self._name(), self._job())

    def _name(self) -> str:
        return agreement.name_of(self._options)

    def _job(self) -> str:
        return (self._options["job"] or os.environ.get("PENSTOCK_JOB") or _core.launch()[6]
                or "default")


def no_epoch_left(reader: Reader) -> errors.FailedPrecondition:
    """The error of a loop that begins after the last epoch."""
    return errors.FailedPrecondition(
        f"all {reader.epoch_count} epochs of this job are over: set more in "
        "the dataset (`.repeat(n)`, `.repeat()` for endless; `epochs:` in a spec "
        "file), set the length of each with `.steps_per_epoch(n)`, or go back to a "
        "`state_dict()` with `reader.load_state_dict(state)` or `reader.reset`")


def state_text(state: State) -> str:
    """A state as text; ValueError or TypeError if it is none."""
    if isinstance(state, str):
        # The core takes an empty state for none, and would begin anew.
        if not state.strip():
            raise errors.InvalidArgument(
                "the state is empty: its checkpoint is incomplete")
        if not state.lstrip().startswith("{"):
            raise errors.InvalidArgument("a state is what `state_dict()` gave, or its JSON text "
                                         f"(not the path of a file), got {state[:80]!r}")
        return state
    if not isinstance(state, Mapping):
        raise TypeError("a state is what `state_dict()` gave, or its JSON text; "
                        f"got {type(state).__name__}")
    return json.dumps(dict(state))


def _releases() -> Iterator[bool]:
    """Waits for releases that need no action of the program; yields True after each
    chance of one, and ends when no more is to be expected."""
    # Unreachable cycles may hold batches.
    gc.collect()
    yield True
    # JAX computes asynchronously, and holds what it reads.
    jax = sys.modules.get("jax")
    if jax is None:
        return
    jax.block_until_ready(jax.live_arrays())
    yield True
    # live_arrays() lacks results that nobody kept: wait for them by time.
    for _ in range(250):
        time.sleep(0.02)
        yield True


def seconds(name: str, value: Optional[float], least: float = 0.0) -> float:
    """Seconds as a C option: 0 means no limit."""
    if value is None:
        return 0.0
    if not isinstance(value, numbers.Real):
        raise TypeError(f"{name}: wanted seconds, got {value!r}")
    if not value >= least:
        raise errors.InvalidArgument(f"{name}={value}: wanted seconds")
    return float(value)


def text(name: str, value: Text) -> Text:
    """Returns value; TypeError, which names the argument, if it is no text."""
    if value is None:
        return value
    if not isinstance(value, str):
        raise TypeError(f"{name}: wanted text, got {value!r}")
    try:
        if b"\0" in value.encode():
            raise errors.InvalidArgument(f"{name}={value!r}: it contains a NUL")
    except UnicodeEncodeError:
        raise errors.InvalidArgument(f"{name}={value!r}: not valid Unicode") from None
    return value


def path(name: str, value: Optional[Union[Path, bytes]],
         wanted: str = "a path") -> Optional[bytes]:
    """The path in the file system's encoding."""
    try:
        encoded = None if value is None else os.fsencode(value)
    except UnicodeEncodeError:
        raise errors.InvalidArgument(f"{name}={value!r}: not a file name") from None
    except TypeError:
        raise TypeError(f"{name}: wanted {wanted}, got {value!r}") from None
    if encoded is not None and b"\0" in encoded:
        raise errors.InvalidArgument(f"{name}={value!r}: it contains a NUL")
    return encoded


def index(name: str, value: int, least: int, most: int = (1 << 31) - 1) -> int:
    """Returns value as an int; an error that names the argument if it is no
    integer from least to most."""
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{name}: wanted an integer, got {value!r}") from None
    if not least <= value <= most:
        raise errors.InvalidArgument(f"{name}={value}: wanted {least} to {most}")
    return value


def number(name: str, value: Optional[int], least: int, none: int) -> int:
    """As index; `none` if value is None."""
    return none if value is None else index(name, value, least)


def reconnect_option(reconnect_s: Optional[float]) -> float:
    """reconnect_s as a C option, where 0 is the default and negative is never."""
    if reconnect_s is None:
        return 0.0
    return seconds("reconnect_s", reconnect_s) or -1.0


def replicas_of(options: Mapping[str, Any]) -> int:
    """Processes that are one rank."""
    split = options.get("delivery") in (None, "split")
    return int(options.get("replicas")
               or split and os.environ.get("PENSTOCK_REPLICAS") or 1)


def attach(dataset: Union[Path, Dataset, None, Callable[[InputContext], Any]] = None,
           rank: Optional[int] = None,
           world_size: Optional[int] = None,
           job: Optional[str] = None,
           *,
           delivery: str = "split",
           state: Optional[State] = None,
           local_world_size: Optional[int] = None,
           replica: Optional[int] = None,
           replicas: Optional[int] = None,
           local_replicas: Optional[int] = None,
           features: Optional[Sequence[str]] = None,
           on_rank_death: Optional[str] = None,
           lag: Optional[str] = None,
           window: Optional[int] = None,
           consumers: Optional[int] = None,
           full_epoch: bool = False,
           per_host: bool = False,
           wait_s: Optional[float] = None,
           reconnect_s: Optional[float] = None,
           timeout_s: Optional[float] = None,
           node: Optional[int] = None,
           socket: Optional[str] = None,
           repeat_first: bool = False,
           autostart: bool = False,
           agree: Any = None) -> Reader:
    """Attaches one rank to a job; the first rank creates it.

    Returns once the dataset is open and its memory is reserved. Ctrl-C ends the wait.

    Args:
      dataset: the name of a registered dataset, the path of a spec file (has a
        "/" or ends in .yaml, .yml or .json), a ``penstock.Dataset``, or a function of
        an InputContext that gives one of these, the same on all ranks. None:
        PENSTOCK_DATASET, which ``penstock run`` sets.
      rank, world_size, local_world_size: global rank and number of ranks, and the
        number on this host. None: from the launcher (penstock run, Horovod,
        torchrun, OpenMPI, Slurm, TF_CONFIG), else rank 0 of 1.
      replica, replicas, local_replicas: split and independent, where several
        processes are one rank, such as the tensor, pipeline and context parallel ones of
        a data-parallel number: how many they are, which of them this is, and how many
        of them are on this host. Each gets all of the rank's batches, made once for a host. rank,
        world_size and local_world_size then count groups of these. ``replicas`` alone:
        they follow one another in the launcher's ranks; ``penstock.parallel`` finds
        the numbers of other layouts. None: in split PENSTOCK_REPLICAS, else 1.
      features: the names of those that a batch has, with the lengths of lists; the
        memory is shared, so the others cost nothing. None: all.
      job: its name. None: PENSTOCK_JOB, the launcher's run id, else "default".
      delivery: "split": a global batch is divided over the ranks; "dynamic":
        each batch to the next rank that has none; "broadcast": each batch to
        every consumer; "independent": the whole dataset to each, in its own
        order.
      state: of ``Reader.state_dict``: begin there, with any number of ranks;
        {"epoch": 0, "row": n}: behind n rows, whatever the dataset is. None: the file
        PENSTOCK_STATE names, else the beginning.
      on_rank_death: "wait" (default of split; not in dynamic): its batches wait for
        a process of the same rank; "fail": the job fails; "shrink" (default of the
        others): the others take over.
      lag: broadcast, for a consumer ``window`` batches behind: "block" (default):
        the others wait; "skip": it misses batches; "fail": it is evicted.
      window: broadcast, in batches. None: the spec's prefetch.
      consumers: broadcast, most consumers at once. None: ``local_world_size``, at
        least 8.
      full_epoch: broadcast, this consumer's epochs begin where it joins.
      per_host: dynamic, when ranks run on several hosts: every host delivers
        all rows to its own ranks. Without it such an attach is refused, because
        hosts cannot divide a dynamic job between them.
      wait_s: for missing or dead ranks (600); then the job fails and names them. Where
        it is given, also for a broker that is about to listen.
      reconnect_s: for a dead broker to come back (60); 0: do not wait.
      timeout_s: limit of attach, next, state_dict, reset and stop_job. None or 0: no
        limit.
      node: NUMA node for the batches. None: PENSTOCK_NODE, else the node of this
        process's processors or GPU.
      socket: the broker's. None: PENSTOCK_SOCKET, else
        /run/penstock/penstock.sock.
      repeat_first: read one batch and return it for ever, to measure the
        trainer's ideal speed (also PENSTOCK_REPEAT_FIRST=1).
      autostart: where no broker listens, start a private one that lives as long
        as this process. The ranks that a launcher started on this host share one,
        which lives as long as any of them.
      agree: split with ranks on several hosts: by what these compare that they have the
        same files, spec, seed and version. None: PENSTOCK_AGREE (file:/FOLDER or off), else
        the store of torch.distributed, Horovod, jax.distributed or mpi4py's COMM_WORLD,
        whichever is initialised. "file:/FOLDER": a folder that all hosts share; a store
        of torch.distributed, a communicator of mpi4py, a module of Horovod; True: one has
        to be found; False: they do not compare.

    Raises:
      InvalidArgument: an option, or the spec with the key or line.
      NotFound: no broker listens, or no such dataset or file.
      AlreadyExists: this rank is attached already. In a notebook, a cell that runs
        again closes the reader that it made before.
      FailedPrecondition: the ranks disagree on an option, or their hosts, with the first
        difference.
      DeadlineExceeded: ranks of other hosts have not come to compare them.
      ResourceExhausted: the memory limit.
      penstock.Error: any other; the text says what to do.
    """
    options: Dict[str, Any] = dict(
        dataset=None, spec=None, job=text("job", job), socket=path("socket", socket),
        delivery=(delivery := text("delivery", delivery) or "split"), lag=text("lag", lag),
        on_rank_death=text("on_rank_death", on_rank_death),
        state=None if state is None else state_text(state),
        rank=number("rank", rank, 0, -1),
        world_size=number("world_size", world_size, 1, 0),
        local_world_size=number("local_world_size", local_world_size, 1, 0),
        replica=number("replica", replica, 0, -1),
        replicas=number("replicas", replicas, 1, 0),
        local_replicas=number("local_replicas", local_replicas, 1, 0),
        timeout_s=seconds("timeout_s", timeout_s),
        repeat_first=bool(repeat_first), window=number("window", window, 0, 0),
        consumers=number("consumers", consumers, 0, 0), full_epoch=bool(full_epoch),
        per_host=bool(per_host),
        wait_s=seconds("wait_s", wait_s),
        reconnect_s=reconnect_option(reconnect_s),
        node=number("node", node, 0, -1), autostart=bool(autostart))
    if autostart and sys.executable:  # its Python functions are to be run by this interpreter
        os.environ.setdefault("PENSTOCK_PYTHON", sys.executable)
    if callable(dataset):
        _, processes, this, *_ = _core.launch()
        each = replicas_of(options)
        ranks = options["world_size"] or processes // each
        this = this // each if rank is None else options["rank"]
        made: Union[Path, Dataset, None] = dataset(InputContext(ranks, this, ranks))
    else:
        made = dataset
    if isinstance(made, Dataset):
        options["spec"] = text("dataset", made.to_json())
    else:
        options["dataset"] = path(
            "dataset", made,
            "a penstock.Dataset, the path of a spec file or a registered name")
    hosts = _Hosts(agree, options) if delivery == "split" else None
    try:
        try:
            core = _core.Reader(**options)
        except errors.AlreadyExists:
            if not _close_former(options):
                raise
            core = _core.Reader(**options)
    except errors.Error as error:
        if hosts is not None:
            hosts.excuse(error)
        raise
    try:
        if hosts is not None:
            hosts.compare(core)
    except BaseException:
        core.close()
        raise
    if core.rank == core.replica == 0 and core.warning:  # once for all ranks
        warnings.warn(core.warning, stacklevel=2)
    try:
        reader = Reader(core, delivery, features, hosts)
    except (KeyError, TypeError):  # of features
        core.close()
        raise
    _open[reader] = _what(options)
    return reader


# The readers of this process and what they were attached with.
_open: "weakref.WeakKeyDictionary[Reader, Dict[str, Any]]" = weakref.WeakKeyDictionary()


def _close_former(options: Dict[str, Any]) -> bool:
    """In a notebook or at a prompt, a cell that runs again means its readers anew: closes
    those of all ranks attached with the same options. In a program they are a mistake."""
    if not hasattr(sys, "ps1"):
        return False
    former = [reader for reader, of in list(_open.items()) if of == _what(options)]
    if not former:
        return False
    job = former[0].job
    try:
        for reader in former:
            reader.close()
    except errors.FailedPrecondition:  # a thread of this process uses one
        return False
    warnings.warn(f"closed the reader of job {job!r} that was attached before with the "
                  "same options; two at a time need a job each (`job`)", stacklevel=3)
    return True


def _what(options: Dict[str, Any]) -> Dict[str, Any]:
    """What makes readers those of one job: their options, but for the rank, and the
    environment that completes these."""
    return {**options, "rank": None, "environment": {
        name: value for name, value in os.environ.items() if name.startswith("PENSTOCK_")}}
