"""A private broker for the length of a program: no configuration, no root, nothing
left behind."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Iterator, Mapping, Optional, Sequence, Union

from penstock import _core
from penstock.errors import InvalidArgument
from penstock.reader import number, text

Path = Union[str, "os.PathLike[str]"]

_COMMAND = os.path.join(os.path.dirname(__file__), "bin", "penstock")


@contextlib.contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Sets environment variables for the block."""
    former = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in former.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class Broker:
    """A private penstockd; made by ``penstock.broker``. It is restarted when it dies,
    and ends with this object or with this process, however that ends. Forked
    children neither keep it alive nor end it. Ctrl-C does not reach it."""

    def __init__(self, workers: Optional[int] = None,
                 memory_limit: Optional[str] = None,
                 python_path: Union[Path, Sequence[Path], None] = None,
                 plugin_dir: Optional[Path] = None):
        allowed = {}
        if sys.executable and "PENSTOCK_PYTHON" not in os.environ:
            allowed["PENSTOCK_PYTHON"] = sys.executable
        if isinstance(python_path, (str, os.PathLike)):
            python_path = [python_path]
        if python_path is not None:
            folders = [os.fspath(folder) for folder in python_path]
            for folder in folders:
                if ":" in folder:
                    raise InvalidArgument(f"python_path {folder!r}: colons "
                                          "separate folders")
            allowed["PENSTOCK_PYTHON_PATH"] = ":".join(folders)
        if plugin_dir is not None:
            allowed["PENSTOCK_PLUGIN_DIR"] = os.fspath(plugin_dir)
        with environment(allowed):
            self._core = _core.Broker(number("workers", workers, 1, 0),
                                      text("memory_limit", memory_limit))
        self._in_block = contextlib.ExitStack()

    @property
    def socket(self) -> str:
        """Path of its socket, for ``attach(socket=...)`` or PENSTOCK_SOCKET."""
        return self._core.socket

    def stop(self) -> None:
        """Stops it; returns once it has ended. No effect the second time."""
        self._core.stop()

    def __enter__(self) -> "Broker":
        self._in_block.enter_context(environment({"PENSTOCK_SOCKET": self.socket}))
        return self

    def __exit__(self, *exception: object) -> None:
        self._in_block.close()
        self.stop()


def broker(workers: Optional[int] = None, memory_limit: Optional[str] = None,
           python_path: Union[Path, Sequence[Path], None] = None,
           plugin_dir: Optional[Path] = None) -> Broker:
    """Starts a private broker and waits until it listens. In a ``with`` block
    PENSTOCK_SOCKET names it, so that ``attach``, and processes started there, find it:

        with penstock.broker():
            reader = penstock.attach("train.yaml")

    Args:
      workers: threads. None: penstockd's own choice.
      memory_limit: such as "4GiB". None: penstockd's own choice.
      python_path: folders of modules whose functions datasets may name
        (``penstock.python``), run by this interpreter. None:
        PENSTOCK_PYTHON_PATH, else no folder.
      plugin_dir: folder of shared libraries (``penstock.plugin``). None:
        PENSTOCK_PLUGIN_DIR, else none.

    Raises:
      InvalidArgument, FailedPrecondition: an argument, or why it did not start.
      NotFound: no ``penstock`` program.
    """
    return Broker(workers, memory_limit, python_path, plugin_dir)


def main() -> None:
    """The ``penstock`` command of the package; processes of Python have its packages."""
    if sys.executable:
        os.environ.setdefault("PENSTOCK_PYTHON", sys.executable)
    os.execv(_COMMAND, ["penstock", *sys.argv[1:]])
