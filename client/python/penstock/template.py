"""A process forked from this program, with a dataset in its memory, from which the
broker forks those that make the batches: as PyTorch's workers, they begin in
milliseconds and share what the program has loaded.

The broker connects to its socket and gives it the text that such processes run
(broker/user_code/python_process.py). It ends when the socket or the broker is gone,
not with its rank: others on this host get its batches too.
"""

from __future__ import annotations

import array
import contextlib
import functools
import gc
import importlib.util
import os
import signal
import socket as sockets
import stat
import struct
import sys
import time
import warnings
from typing import Any, Callable, Dict, Optional, Set, Tuple

_LOOK_S = 1.0  # how often it looks whether it is needed
_GONE_S = 10.0  # a broker that does not listen for so long is gone
_MESSAGE_MAX = 1 << 16

# Descriptors of this package, which a fork does not keep.
OWN_DESCRIPTORS: Set[int] = set()


def can_fork() -> bool:
    """Whether this program can be forked: a CUDA context cannot."""
    torch = sys.modules.get("torch")
    return not (torch is not None and torch.cuda.is_initialized())


def offer(path: str, broker: str, given: Dict[str, Any],
          forget: Callable[[], None]) -> Callable[[], bool]:
    """Forks the process, which listens at path and has what is given.

    Returns:
      What waits until it is forked. False: it cannot listen there (a path too long,
      another rank's), or be forked.

    Args:
      broker: the socket of the broker.
      forget: called in the process, which drops what it has no use for.
    """
    try:
        listener = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
        listener.bind(path)
    except OSError:
        return lambda: False
    with listener:
        listener.listen()
        forked = meanwhile(lambda: _Template(listener, path, broker, given).run(forget),
                           listener.fileno())

    @functools.lru_cache(maxsize=None)
    def offered() -> bool:
        try:
            forked()
        except OSError:
            withdraw(path)
            return False
        return True

    return offered


def withdraw(path: str) -> None:
    """The process ends; those that it has forked go on."""
    with contextlib.suppress(OSError):
        os.unlink(path)


def meanwhile(work: Callable[[], None], keep: int = -1) -> Callable[[], None]:
    """Does it in a process forked from this one, whose child it is not, and which
    keeps one descriptor beside its files.

    Returns:
      What waits until it is forked, and must be called once. OSError: it cannot be.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.flush()  # which a program may have replaced, or closed
    with warnings.catch_warnings():
        # Python warns of forks beside threads: the child calls none of their code.
        warnings.simplefilter("ignore")
        try:
            child = os.fork()
        except OSError as error:
            failed = error
            return lambda: _raise(failed)
    if child == 0:
        status = 1
        try:
            other = os.fork()
            status = 0
            if other == 0:
                os.setsid()
                _close_others(keep)
                work()
        finally:
            os._exit(status)

    def wait() -> None:
        try:
            status = os.waitpid(child, 0)[1]
        except ChildProcessError:  # the program ignores SIGCHLD
            return
        if status != 0:
            raise OSError("the process cannot be forked")

    return wait


def _raise(error: OSError) -> None:
    raise error


def _close_others(keep: int) -> None:
    """Lets nothing wait for this process: connections, pipes and the output become
    /dev/null, whose numbers their owners may still use."""
    null = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd"):
        number = int(name)
        try:
            if number != keep and (
                    number <= 2 or number in OWN_DESCRIPTORS
                    or not stat.S_ISREG(os.fstat(number).st_mode)
                    or os.readlink(f"/proc/self/fd/{name}").startswith("/memfd:")):
                os.dup2(null, number)
        except OSError:  # that of the listing
            pass


def _compiled(program: str) -> Any:
    """Its code, which Python keeps beside the module of the same text: to compile it
    takes longer than to fork."""
    source, code = _kept()
    return code if source == program else compile(program, "<string>", "exec")


@functools.lru_cache(maxsize=None)
def _kept() -> Tuple[str, Any]:
    try:
        found = importlib.util.find_spec("penstock._broker_program")
        loader: Any = found and found.loader
        return loader.get_source(loader.name), loader.get_code(loader.name)
    except Exception:
        return "", None


class _Template:
    def __init__(self, listener: sockets.socket, path: str, broker: str,
                 given: Dict[str, Any]):
        self._listener, self._path, self._broker = listener, path, broker
        self._given = given

    def run(self, forget: Callable[[], None]) -> None:
        forget()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        # What all processes want, while nobody waits for it.
        _kept()
        with contextlib.suppress(Exception):
            importlib.import_module("numpy.random")
        gc.freeze()  # a collection would write to all of the shared pages
        self._listener.settimeout(_LOOK_S)
        # The first connection finds a process that waits for it.
        accepted, accepts = os.pipe()
        if os.fork() == 0:
            self._serve(self._accept(), accepts)
            return
        os.close(accepts)
        os.read(accepted, 1)
        while True:
            connection = self._accept()
            if connection is None:
                return
            if os.fork() == 0:
                self._serve(connection)
                return
            connection.close()

    def _accept(self) -> Optional[sockets.socket]:
        """None: nobody needs the template any more."""
        heard_s = time.monotonic()
        while os.path.exists(self._path):
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            with contextlib.suppress(sockets.timeout):
                return self._listener.accept()[0]
            if time.monotonic() - heard_s > _GONE_S:
                if not self._broker_listens():
                    withdraw(self._path)
                    break
                heard_s = time.monotonic()
        return None

    def _broker_listens(self) -> bool:
        with sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET) as probe:
            try:
                probe.connect(self._broker)
            except OSError:
                return False
        return True

    def _serve(self, connection: Optional[sockets.socket], *pipe: int) -> None:
        for number in pipe:
            os.close(number)
        if connection is None:
            return
        self._listener.close()
        credentials = connection.getsockopt(
            sockets.SOL_SOCKET, sockets.SO_PEERCRED, struct.calcsize("3i"))
        if struct.unpack("3i", credentials)[1] != os.geteuid():
            return
        trusted, control, _, _ = connection.recvmsg(
            _MESSAGE_MAX, sockets.CMSG_SPACE(8))
        descriptors = array.array("i")
        for level, kind, data in control:
            if (level, kind) == (sockets.SOL_SOCKET, sockets.SCM_RIGHTS):
                descriptors.frombytes(data)
        text, log = descriptors
        for number in (1, 2):
            os.dup2(log, number)
        os.close(log)
        with os.fdopen(text) as file:
            program = file.read()
        exec(_compiled(program), {
            "__name__": "penstock", "GIVEN": self._given, "LINK": connection.detach(),
            "TRUSTED": trusted.decode()})
