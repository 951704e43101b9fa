"""The ranks of a launcher, or of torch.distributed."""

from __future__ import annotations

import contextlib
import functools
import os
import socket as sockets
import threading
from typing import Any, Dict, Iterator, List, Optional

from torch import distributed

from penstock import _core, map_style
from penstock.reader import replicas_of

_PATIENCE_S = 10  # of a rank that waits for others


def ranks_of(options: Dict[str, Any]) -> Optional[map_style.Ranks]:
    """The ranks of torch.distributed, unless the options or a launcher number them:
    of torch.multiprocessing.spawn or Lightning. All ranks ask."""
    if (options.get("world_size") is not None or _core.launch()[1] > 1
            or group_size() == 1):
        return None
    return _gathered(distributed.get_rank(), group_size())


def world_size_of(options: Dict[str, Any]) -> int:
    """The number of ranks that the options, a launcher or torch.distributed say."""
    if options.get("world_size") is not None:
        return int(options["world_size"])
    launched, each = _core.launch()[1], replicas_of(options)
    processes = launched if launched > 1 else group_size()
    if processes % each:
        raise ValueError(f"replicas: {each}, and the world of {processes} processes is no "
                         "multiple of it")
    return processes // each


def group_size() -> int:
    """The number of ranks of torch.distributed; 1 without it."""
    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_world_size())
    return 1


def own_rank() -> int:
    """This process's among all, whatever a loader's options say."""
    _, launched, number, *_ = _core.launch()
    return number if launched > 1 or group_size() == 1 else distributed.get_rank()


def is_alone(options: Dict[str, Any]) -> bool:
    """It has all rows to itself, though there are other ranks."""
    return (options.get("world_size") == 1 < max(_core.launch()[1], group_size())
            and replicas_of(options) == 1)


@contextlib.contextmanager
def meeting() -> Iterator[None]:
    """Warns of a wait for other ranks that takes long."""
    def tell() -> None:
        map_style.warn(
            "penstock.torch.DataLoader: this rank has left its last loop by `break`, or "
            "begins at a state, and waits for the other ranks to come to this loop, too. "
            "A loop of one rank alone has a loader of its own: rank=0, world_size=1")
    timer = threading.Timer(_PATIENCE_S, tell)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@functools.lru_cache(maxsize=None)
def _gathered(rank: int, world_size: int) -> map_style.Ranks:
    places: List[Any] = [None] * world_size
    distributed.all_gather_object(places, (sockets.gethostname(), os.getpid()))
    here = [place for place in places if place[0] == places[rank][0]]
    return map_style.Ranks(rank, world_size, len(here), "-".join(map(str, places[0])))
