"""The ranks of a launcher, or of torch.distributed."""

from __future__ import annotations

import functools
import os
import socket as sockets
from typing import Any, Dict, List, Optional

from torch import distributed

from penstock import _core, map_style


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
    launched = _core.launch()[1]
    return launched if launched > 1 else group_size()


def group_size() -> int:
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
