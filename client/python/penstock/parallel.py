"""Where a process is among the ranks of a job whose model is parallel, too: processes
of one data-parallel number are one rank (its replicas), and each gets its batches.

    layout = penstock.parallel.of_mesh(mesh)     # of torch.distributed, dp and tp
    layout = penstock.parallel.of_megatron()     # megatron.core.parallel_state
    layout = penstock.parallel.of_sizes(pp=2, dp=2, tp=2)  # the outermost first
    layout = penstock.parallel.of_data_rank(dp_rank, dp_size)  # asks all processes
    with penstock.attach("train.yaml", **layout.options()) as reader:
        ...

``slice_of`` is a context-parallel process's part of a batch's sequences.
"""

from __future__ import annotations

import collections
import dataclasses
import importlib
import math
import operator
import os
import socket as sockets
import sys
from typing import Any, Dict, List, Optional, Sequence, Tuple

import numpy as np

from penstock import _core

# Names of the dimensions of a mesh that are data parallel: those of PyTorch's recipes,
# torchtitan, Lightning, Accelerate, Megatron-FSDP and JAX's models.
DATA = ("batch", "data", "data_parallel", "ddp", "dp", "dp_inter", "dp_outer", "dp_rep",
        "dp_replicate", "dp_shard", "dp_shard_in_ep", "dp_shard_mod_ep", "fsdp", "hsdp",
        "replica", "replicate", "shard")
# Those whose processes get the same batches. Expert parallel ones are not here: they may
# be data parallel, too.
MODEL = ("context", "context_parallel", "cp", "model", "model_parallel", "mp", "pipe",
         "pipeline", "pipeline_parallel", "pp", "sequence", "sequence_parallel", "sp", "stage",
         "tensor", "tensor_parallel", "tp")


@dataclasses.dataclass(frozen=True)
class Layout:
    """The numbers of this process that ``penstock.attach`` takes."""

    rank: int
    world_size: int
    replica: int
    replicas: int
    local_world_size: int  # ranks of this host
    local_replicas: int  # processes of this host that are one of these

    def options(self) -> Dict[str, int]:
        """As arguments of ``penstock.attach`` and ``penstock.torch.DataLoader``."""
        return dataclasses.asdict(self)


def of_mesh(mesh: Any, data: Optional[Sequence[str]] = None) -> Layout:
    """Of a DeviceMesh of ``torch.distributed`` that has all processes.

    Args:
      data: the names of its data-parallel dimensions; [] if all processes are one rank.
        None: those of ``DATA`` that it has. All others are replicas.

    Raises:
      ValueError: it has not all processes, no such names, or, without ``data``, one that
        is neither in ``DATA`` nor in ``MODEL``.
    """
    names = mesh.mesh_dim_names
    if not names:
        raise ValueError("the mesh's dimensions have no names: give init_device_mesh "
                         "`mesh_dim_names`")
    return _of_grid(np.asarray(mesh.mesh), names, data, "the mesh", _launch())


def of_sizes(data: Optional[Sequence[str]] = None, *, process: Optional[int] = None,
             here: Optional[Sequence[int]] = None, **sizes: int) -> Layout:
    """Of a mesh of these sizes, the outermost first, whose processes are numbered as
    the launcher's ranks are: ``of_sizes(pp=2, dp=2, tp=2)``.

    Args:
      data: as of ``of_mesh``.
      process: the number of this process. None: from the launcher or
        ``torch.distributed``, else 0 of 1. Where it is given, the mesh has as many
        processes as the sizes say: a dry run needs no launcher.
      here: the numbers of the processes of this host. None: from the launcher; with
        ``process`` all.

    Raises:
      ValueError: their product is not the number of processes; as of ``of_mesh``.
    """
    for name, size in sizes.items():
        if operator.index(size) < 1:
            raise ValueError(f"{name} is {size}; wanted 1 or more")
    grid = np.arange(math.prod(sizes.values())).reshape(tuple(sizes.values()))
    launch = _launch() if process is None else _Launch(
        grid.size, operator.index(process), grid.size, operator.index(process), "process")
    if not 0 <= launch.this < launch.processes:
        raise ValueError(f"process {launch.this} of {launch.processes}: they count from 0 to "
                         f"{launch.processes - 1}")
    return _of_grid(grid, list(sizes), data, "", launch, here)


def of_torchtitan(dims: Any) -> Layout:
    """Of torchtitan's ParallelDims.

    Raises:
      ValueError: their product is not the number of processes.
    """
    names = ("pp", "dp_replicate", "dp_shard", "cp", "tp")
    return of_sizes(**{name: getattr(dims, name) for name in names})


def of_megatron(parallel_state: Any = None, order: str = "tp-cp-ep-dp-pp") -> Layout:
    """Of Megatron, once its model parallel groups are initialised.

    Args:
      parallel_state: None: ``megatron.core.parallel_state``.
      order: as ``initialize_model_parallel`` was given it, the innermost first. It
        says which processes are on this host.

    Raises:
      ValueError: it is not initialised, or its numbers are not those of this order.
    """
    if parallel_state is None:
        parallel_state = importlib.import_module("megatron.core.parallel_state")
    state = parallel_state
    if not state.model_parallel_is_initialized():
        raise ValueError("megatron.core.parallel_state is not initialised: call "
                         "initialize_model_parallel first")
    numbers = {
        "tp": (state.get_tensor_model_parallel_rank(),
               state.get_tensor_model_parallel_world_size()),
        "cp": (state.get_context_parallel_rank(),
               state.get_context_parallel_world_size()),
        "dp": (state.get_data_parallel_rank(), state.get_data_parallel_world_size()),
        "pp": (state.get_pipeline_model_parallel_rank(),
               state.get_pipeline_model_parallel_world_size())}
    # Experts are parallel over processes that have dense layers' numbers, too.
    inner = [name for name in order.split("-") if name in numbers]
    if sorted(inner) != sorted(numbers):
        raise ValueError(f"order: wanted tp, cp, dp and pp, separated by '-', got {order!r}")
    outer = inner[::-1]
    layout = of_sizes(**{name: numbers[name][1] for name in outer})
    of_dp = layout.rank, numbers["dp"][0]
    place = [numbers[name] for name in outer if name != "dp"]
    replica = 0
    for number, size in place:
        replica = replica * size + number
    if of_dp[0] != of_dp[1] or layout.replica != replica:
        raise ValueError(
            f"megatron: this process has data parallel rank {of_dp[1]}, and rank "
            f"{of_dp[0]} in the order {order!r}: give the order that "
            "initialize_model_parallel was given")
    return layout


def of_data_rank(rank: Optional[int], world_size: int) -> Optional[Layout]:
    """Of what knows only its data-parallel rank and their number, as what torchtitan and
    Megatron build their loaders with. All processes of ``torch.distributed`` call it, in
    any layout, and tell each other.

    Args:
      rank: None: this process takes no batches, as those that get them by a broadcast,
        or have a stage in the middle of a pipeline; then it returns None.

    Raises:
      ValueError: the processes disagree on ``world_size``, or some ranks have more
        processes than others, of all or of those of this host.
    """
    distributed = importlib.import_module("torch.distributed")
    if not (distributed.is_available() and distributed.is_initialized()):
        raise ValueError("torch.distributed is not initialised: call init_process_group first")
    this = distributed.get_rank()
    told: List[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(told, (sockets.gethostname(), rank, world_size))
    sizes = sorted({size for _, _, size in told})
    if len(sizes) > 1:
        raise ValueError(f"world_size: some processes say {sizes[0]}, others {sizes[1]}")
    if world_size < 1:
        raise ValueError(f"world_size is {world_size}; wanted 1 or more")
    members: List[List[int]] = [[] for _ in range(world_size)]  # by rank: its processes
    for process, (_, each, _) in enumerate(told):
        if each is not None and not 0 <= each < world_size:
            raise ValueError(f"process {process} says that its rank is {each}: they count "
                             f"from 0 to {world_size - 1}")
        if each is not None:
            members[each].append(process)
    counts = [len(each) for each in members]
    if min(counts) != max(counts) or not counts[0]:
        least, most = counts.index(min(counts)), counts.index(max(counts))
        raise ValueError(f"rank {least} has {min(counts)} processes that take batches, and "
                         f"rank {most} has {max(counts)}: each rank has equally many, and one "
                         "at least")
    if rank is None:
        return None
    here = [process for process, (host, *_) in enumerate(told) if host == told[this][0]]
    return _of_members(members, this, here, "the processes of this launch")


def slice_of(sequences: Any, number: int, size: int, *, dim: int = 1,
             order: str = "contiguous", join: bool = False) -> Any:
    """The part of a batch's sequences for one of ``size`` context-parallel processes.

    Args:
      sequences: an array or a tensor, such as ``batch["tokens"]``.
      dim: the dimension of the sequence.
      order: "contiguous", the part with this number: a view; "zigzag": of twice as
        many parts the one with this number and the one as far from the end, so that
        causal attention costs all processes the same: a pair of views.
      join: of a zigzag, both in one array, a copy.

    Raises:
      ValueError: the sequence cannot be divided evenly, or there is no such number.
    """
    if order not in ("contiguous", "zigzag"):
        raise ValueError(f"order: wanted 'contiguous' or 'zigzag', got {order!r}")
    if not 0 <= number < size:
        raise ValueError(f"number {number} of {size} context-parallel processes: they count "
                         f"from 0 to {size - 1}")
    dim = range(sequences.ndim)[dim]
    length = sequences.shape[dim]
    parts = size if order == "contiguous" else 2 * size
    if length % parts:
        raise ValueError(f"a sequence of {length} is not divisible by {parts}: {order} for "
                         f"{size} context-parallel processes")

    def part(at: int) -> Any:
        step = length // parts
        return sequences[(slice(None),) * dim + (slice(at * step, (at + 1) * step),)]

    if order == "contiguous":
        return part(number)
    views = part(number), part(parts - 1 - number)
    if not join:
        return views
    if isinstance(sequences, np.ndarray):
        return np.concatenate(views, dim)
    return importlib.import_module("torch").cat(views, dim)


@dataclasses.dataclass(frozen=True)
class _Launch:
    processes: int
    this: int
    local: int  # how many are on this host
    local_rank: int  # among these; -1: unknown
    launcher: str
    stride: int = 1  # from one of these to the next, as the launcher says; 0: unknown

    def here(self) -> Sequence[int]:
        """The numbers of the processes of this host."""
        if self.stride > 1:
            return range(self.this % self.stride, self.processes, self.stride)
        equal = self.processes % self.local == 0  # hosts may have equally many
        first = self.this - self.local_rank
        if self.local_rank < 0 and equal:
            first = self.this // self.local * self.local
        # These launchers may deal processes out to hosts in turn, and not all tell: where
        # they do, a host begins elsewhere than behind hosts of its own size.
        in_turn = self.launcher in ("Horovod", "OpenMPI", "Slurm") and first % self.local != 0
        if (not self.stride or in_turn or self.local_rank >= self.local
                or (self.local_rank < 0 and not equal)
                or first < 0 or first + self.local > self.processes):
            raise ValueError(
                f"process {self.this} of {self.processes} is "
                f"{'one' if self.local_rank < 0 else f'number {self.local_rank}'} of "
                f"{self.local} on this host ({self.launcher}): whether these follow one another "
                "is not known: ask all processes by `penstock.parallel.of_data_rank`, or say "
                "which are `here` to `of_sizes`")
        return range(first, first + self.local)


def _is_data(names: Sequence[str], sizes: Sequence[int],
             data: Optional[Sequence[str]]) -> List[bool]:
    """Which of a mesh's dimensions are data parallel."""
    if isinstance(data, (str, bytes)):
        raise TypeError(f"data: wanted names, [{data!r}], got a text")
    if isinstance(data, int):
        raise TypeError(f"data: wanted names, got {data}: where it is a size, call it `dp`")
    missing = [name for name in data or () if name not in names]
    if missing:
        raise ValueError(f"data: the mesh has no dimension {missing[0]!r}; it has "
                         f"{', '.join(names) or 'none'}")
    unknown = [name for name, size in zip(names, sizes)
               if size > 1 and name not in DATA + MODEL]
    if data is None and unknown:
        raise ValueError(
            f"the mesh has {', '.join(names)}; whether {unknown[0]!r} is data parallel is not "
            "known: name the dimensions that are, data=[...], or data=[] if all processes "
            "are one rank")
    return [name in (DATA if data is None else data) for name in names]


def _of_grid(grid: np.ndarray, names: Sequence[str], data: Optional[Sequence[str]], whose: str,
             launch: _Launch, here: Optional[Sequence[int]] = None) -> Layout:
    """grid: the number of the process at each place of a mesh; here: None, as launch says."""
    is_data = _is_data(names, grid.shape, data)
    what = " ".join(filter(None, [whose, " × ".join(
        f"{name} {size}" for name, size in zip(names, grid.shape)) or "an empty mesh"]))
    processes = launch.processes
    if sorted(grid.flat) != list(range(processes)):
        hint = ("" if processes % grid.size else
                ": give the whole mesh, not a part of it, with the dimensions of all")
        if launch.launcher == "none":
            hint = ": no launcher and no torch.distributed tell of others: `of_sizes` takes " \
                   "`process`"
        raise ValueError(f"{what} has {grid.size} of {processes} processes{hint}")
    chosen = [axis for axis, each in enumerate(is_data) if each]
    others = [axis for axis, each in enumerate(is_data) if not each]
    ranks = math.prod(grid.shape[axis] for axis in chosen)
    # By rank and replica: the process.
    members = grid.transpose(chosen + others).reshape(ranks, -1).tolist()
    if here is None:
        here = launch.here()
    elif launch.this not in here or not set(here) <= set(range(processes)):
        raise ValueError(f"here: wanted numbers below {processes}, with {launch.this}, this "
                         f"process's, among them; got {list(here)}")
    return _of_members(members, launch.this, sorted(set(here)), what)


def _of_members(members: Sequence[Sequence[int]], this: int, here: Sequence[int],
                what: str) -> Layout:
    """members: the processes of each rank; here: the processes of this host."""
    places = {process: (rank, replica) for rank, processes in enumerate(members)
              for replica, process in enumerate(processes)}
    local = collections.Counter(places[each][0] for each in here if each in places)
    replicas = local[places[this][0]]
    if any(count != replicas for count in local.values()):
        raise ValueError(
            f"{what}: of the {len(here)} processes of this host, some ranks have more replicas "
            "than others: let the sizes divide the processes of a host, or these them")
    rank, replica = places[this]
    return Layout(rank, len(members), replica, len(members[0]), len(local), replicas)


def _launch() -> _Launch:
    name, processes, this, local, local_rank, stride, _ = _core.launch()
    # Who has not imported it has not initialised it.
    distributed = sys.modules.get("torch.distributed")
    if (name == "none" and distributed is not None and distributed.is_available()
            and distributed.is_initialized()):
        name = "torch.distributed"
        processes, this = distributed.get_world_size(), distributed.get_rank()
        local = int(os.environ.get("LOCAL_WORLD_SIZE", processes))
        local_rank = int(os.environ.get("LOCAL_RANK", this if local == processes else -1))
    return _Launch(processes, this, max(local, 1), local_rank, name, stride)
