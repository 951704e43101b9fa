"""A broker of one's own, for the length of a program: no configuration, no
root, nothing left behind."""

from __future__ import annotations

import os
import sys
from typing import Optional

from penstock import _core

_COMMAND = os.path.join(os.path.dirname(__file__), "bin", "penstock")


class Broker:
    """A private penstockd. It is restarted when it dies, and ends with this
    object, or with this process, however that ends."""

    def __init__(self, workers: Optional[int] = None,
                 memory_limit: Optional[str] = None):
        self._core = _core.Broker(workers or 0, memory_limit)
        self._former: Optional[str] = None

    @property
    def socket(self) -> str:
        """Where it listens: for ``attach(socket=...)``, or PENSTOCK_SOCKET."""
        return self._core.socket

    def stop(self) -> None:
        """Again: nothing."""
        self._core.stop()

    def __enter__(self) -> "Broker":
        self._former = os.environ.get("PENSTOCK_SOCKET")
        os.environ["PENSTOCK_SOCKET"] = self.socket
        return self

    def __exit__(self, *exception: object) -> None:
        if self._former is None:
            os.environ.pop("PENSTOCK_SOCKET", None)
        else:
            os.environ["PENSTOCK_SOCKET"] = self._former
        self.stop()


def broker(workers: Optional[int] = None,
           memory_limit: Optional[str] = None) -> Broker:
    """Starts a private broker; in a ``with`` block PENSTOCK_SOCKET names it, so
    that ``attach`` and processes that are started here find it:

        with penstock.broker():
            reader = penstock.attach("train.yaml")

    ``workers``: threads; ``memory_limit``: such as "4GiB"; None: penstockd's own
    choice."""
    return Broker(workers, memory_limit)


def main() -> None:
    """The ``penstock`` command of the package."""
    os.execv(_COMMAND, ["penstock", *sys.argv[1:]])
