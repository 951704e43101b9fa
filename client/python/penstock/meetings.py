"""By what the ranks of several hosts meet: torch.distributed's store, Horovod, JAX's
distributed client, MPI, or a folder that all hosts share."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket as sockets
import sys
import time
import urllib.parse
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union

from penstock import errors

VALUE_BYTES = 64 * 1024  # of one process
_SETTLE_S = 3.0
_MPI_TAG = 21_733

Kept = Dict[int, bytes]


class Late(Exception):
    """Processes that have not come in time."""

    def __init__(self, missing: Sequence[int]):
        super().__init__(missing)
        self.missing = list(missing)


class Meeting:
    """``size`` processes, of which process 0 hears all and speaks to all. ``gather`` and
    ``tell`` follow one another, in all of them. Late: not by ``until``."""

    until = 0.0

    def __init__(self, number: int, size: int):
        self.number, self.size = number, size

    def gather(self, value: bytes, of: Sequence[int]) -> Kept:
        """Process 0 gets the values of these processes; the others get none."""
        raise NotImplementedError

    def tell(self, value: bytes) -> bytes:
        """All get process 0's."""
        raise NotImplementedError

    def hand_in(self, value: bytes) -> None:
        """Gives the first gather's value, or process 0's answer, and comes no more."""

    def settle(self) -> None:
        """Process 0 is about to end, perhaps with what all meet by: it waits a little for
        those who have not heard it."""

    def _pause(self, since: float) -> None:
        """Between two looks: short in the beginning."""
        time.sleep(min(0.0005 + (time.monotonic() - since) / 20, 0.05))


class Stored(Meeting):
    """Over a store of keys and values."""

    def __init__(self, number: int, size: int, name: str, put: Callable[[str, bytes], None],
                 take: Callable[[Sequence[str], float], List[Optional[bytes]]]):
        """take: waits for the keys for so many seconds at most; None: there is none."""
        super().__init__(number, size)
        self._name, self._put, self._take = name, put, take
        self._round = 0

    def gather(self, value: bytes, of: Sequence[int]) -> Kept:
        self._round += 1
        if self.number:
            if self.number in of:
                self._put(self._key(self.number), value)
            return {}
        others = [each for each in of if each]
        told = {0: value} if 0 in of else {}
        told.update(zip(others, self._wait([self._key(each) for each in others], others)))
        return told

    def tell(self, value: bytes) -> bytes:
        key = self._key("all")
        if self.number:
            return self._wait([key], [0])[0]
        self._put(key, value)
        return value

    def hand_in(self, value: bytes) -> None:
        if self.number:
            self.gather(value, [self.number])
        else:
            self._round = 1
            self.tell(value)
            self.settle()

    def settle(self) -> None:
        self.until = time.monotonic() + _SETTLE_S
        try:
            self.gather(b"heard", range(self.size))
        except (Late, errors.Unavailable):
            pass

    def _key(self, of: Union[int, str]) -> str:
        return f"{self._name}/{self._round}/{of}"

    def _wait(self, keys: List[str], of: List[int]) -> List[bytes]:
        found: List[Optional[bytes]] = []
        while keys:
            # Ctrl-C is heard between two waits.
            left = self.until - time.monotonic()
            found = self._take(keys, max(min(left, 1.0), 0.0))
            if None not in found:
                break
            if left <= 0:
                raise Late([each for each, value in zip(of, found) if value is None])
        return [value or b"" for value in found]


class Folder(Meeting):
    """A folder on storage that all hosts share. What a former launch of this name left
    there is not taken for this one's: process 0 opens a new folder, the others follow
    it to the newest, and are answered by what they have written."""

    def __init__(self, number: int, size: int, folder: str, name: str):
        super().__init__(number, size)
        if not os.path.isdir(folder):
            raise errors.NotFound(f"agree='file:{folder}': there is no such folder on "
                                  f"{sockets.gethostname()}: wanted one that all hosts share")
        self._folder, self._run = folder, name
        self._name = ("penstock-" + urllib.parse.quote(name, safe="")[:150]
                      + f"-{size}.{_count(folder, f'{name}-{size}-{number}')}")
        self._nonce = secrets.token_hex(4).encode()
        self._round = 0
        self._here: Optional[str] = None
        self._value: Optional[bytes] = None

    def gather(self, value: bytes, of: Sequence[int]) -> Kept:
        self._round += 1
        self._value = value if self.number in of else None
        if self.number:
            return {}
        if self._here is None:
            self._here = self._begin()
        told = {0: value} if 0 in of else {}
        since = time.monotonic()
        self._heard: Dict[int, bytes] = {}
        while len(told) < len(of):
            for each in of:
                if each not in told:
                    found = self._read(f"{self._here}/{self._round}.{each}")
                    if found is not None:
                        self._heard[each], told[each] = found[:8], found[8:]
            if len(told) == len(of):
                break
            if self._read(self._name) != self._here.encode():
                raise errors.FailedPrecondition(
                    f"agree='file:{self._folder}': another job named {self._run!r} has begun to "
                    "meet there: give each job its own name (`job`, PENSTOCK_JOB, torchrun's "
                    "--rdzv-id)")
            if time.monotonic() > self.until:
                raise Late([each for each in of if each not in told])
            self._pause(since)
        if self._round == 1:  # all have left the meeting before
            for former in _leftovers.pop((self._folder, self._run), []):
                _remove(former)
            _leftovers[self._folder, self._run] = [
                os.path.join(self._folder, each) for each in (self._name, self._here)]
        return told

    def tell(self, value: bytes) -> bytes:
        if not self.number:
            heard = {str(each): nonce.decode("latin-1") for each, nonce in self._heard.items()}
            self._write(f"{self._here}/{self._round}.all",
                        json.dumps(heard).encode() + b"\n" + value)
            return value
        since = time.monotonic()
        while True:
            newest = (self._read(self._name) or b"").decode("latin-1")
            if newest != (self._here or "") and self._round == 1 and self._is_place(newest):
                self._here = newest
                self._answer()
            elif self._here is not None and self._round > 1:
                self._answer()
            if self._here is not None:
                found = self._read(f"{self._here}/{self._round}.all", self.size * 32)
                if found is not None:
                    others, _, told = found.partition(b"\n")
                    mine = parsed(others)
                    if self._round > 1 or isinstance(mine, dict) and (
                            mine.get(str(self.number)) == self._nonce.decode()):
                        return told
            if time.monotonic() > self.until:
                raise Late([0])
            self._pause(since)

    def hand_in(self, value: bytes) -> None:
        if not self.number:  # only those who have come hear it
            self.until = time.monotonic() + 2
            try:
                self.gather(b"", range(self.size))
            except Late:
                pass
            self.tell(value)
            return
        self._round, self._value = 1, value
        self.until = time.monotonic() + 3  # for process 0 to come
        try:
            self.tell(b"")
        except Late:
            pass

    def _answer(self) -> None:
        if self._value is not None:
            try:
                self._write(f"{self._here}/{self._round}.{self.number}",
                            self._nonce + self._value)
            except FileNotFoundError:  # a former launch's, which process 0 has removed
                self._here = None
                return
            if self._round > 1:
                self._value = None

    def _is_place(self, name: str) -> bool:
        return re.fullmatch(re.escape(self._name) + r"\.[0-9a-f]{16}", name) is not None

    def _begin(self) -> str:
        former = (self._read(self._name) or b"").decode("latin-1")
        here = f"{self._name}.{secrets.token_hex(8)}"
        os.mkdir(os.path.join(self._folder, here))
        self._heard = {}
        self._write(self._name, here.encode())
        if self._is_place(former):
            _remove(os.path.join(self._folder, former))
        return here

    def _write(self, name: str, value: bytes) -> None:
        path = os.path.join(self._folder, name)
        partial = f"{path}.{os.getpid()}-{self._nonce.decode()}"
        with open(partial, "wb") as file:
            file.write(value)
        os.replace(partial, path)

    def _read(self, name: str, more: int = 0) -> Optional[bytes]:
        try:
            with open(os.path.join(self._folder, name), "rb") as file:
                return file.read(VALUE_BYTES + 8 + more)
        except (FileNotFoundError, NotADirectoryError):
            return None


# What the last meeting in a folder has left there, by its name.
_leftovers: Dict[Tuple[str, str], List[str]] = {}


def _remove(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)
    try:
        os.unlink(path)
    except OSError:
        pass  # it was a folder


class Mpi(Meeting):
    """A communicator of mpi4py."""

    def __init__(self, comm: Any):
        super().__init__(comm.Get_rank(), comm.Get_size())
        self._comm = comm
        self._mpi = sys.modules["mpi4py.MPI"]
        self._sent: List[Any] = []

    def gather(self, value: bytes, of: Sequence[int]) -> Kept:
        if self.number:
            if self.number in of:
                self._send(value, 0)
            return {}
        told = {0: value} if 0 in of else {}
        while len(told) < len(of):
            source, heard = self._receive(self._mpi.ANY_SOURCE,
                                          [each for each in of if each not in told])
            told[source] = heard
        return told

    def tell(self, value: bytes) -> bytes:
        if self.number:
            value = self._receive(0, [0])[1]
        else:
            for each in range(1, self.size):
                self._send(value, each)
        since = time.monotonic()
        while not self._mpi.Request.Testall([request for request, _ in self._sent]):
            if time.monotonic() > self.until:
                break  # those who have not come will not hear it
            self._pause(since)
        self._sent = []
        return value

    def hand_in(self, value: bytes) -> None:
        if self.number:
            self._send(value, 0)
        else:
            self.until = time.monotonic() + 1
            self.tell(value)

    def _send(self, value: bytes, to: int) -> None:
        kept = bytearray(value)  # until it is sent
        request = self._comm.Isend([kept, self._mpi.BYTE], dest=to, tag=_MPI_TAG)
        self._sent.append((request, kept))

    def _receive(self, source: int, missing: Sequence[int]) -> Tuple[int, bytes]:
        status = self._mpi.Status()
        since = time.monotonic()
        while not self._comm.Iprobe(source=source, tag=_MPI_TAG, status=status):
            if time.monotonic() > self.until:
                raise Late(missing)
            self._pause(since)
        value = bytearray(status.Get_count(self._mpi.BYTE))
        self._comm.Recv([value, self._mpi.BYTE], source=status.Get_source(), tag=_MPI_TAG)
        return status.Get_source(), bytes(value)


class Horovod(Meeting):
    """A module of Horovod (``horovod.torch``, ``horovod.tensorflow``). It has no time
    limit: its own check for stalled ranks names those that do not come."""

    def __init__(self, module: Any):
        super().__init__(module.rank(), module.size())
        self._module = module

    def gather(self, value: bytes, of: Sequence[int]) -> Kept:
        told = self._module.allgather_object(value if self.number in of else None)
        return {each: told[each] for each in of} if not self.number else {}

    def tell(self, value: bytes) -> bytes:
        told = self._module.broadcast_object(value, root_rank=0)
        return told if isinstance(told, bytes) else b""


# ---- which one

# The meetings of this process over each store or folder that it has, by name, so that the
# n-th of one process meets the n-th of the others. The newest stores.
_STORES_MOST = 64
_counts: Dict[Union[int, str], Tuple[Any, Dict[str, int]]] = {}


def find(agree: Any, number: int, size: int, name: str, job: str) -> Optional[Meeting]:
    """agree: as of ``penstock.attach``. None: there is nothing by which processes can
    meet, or they are not to.

    Raises:
      TypeError, InvalidArgument: agree is nothing of the kind, or of another number of
        processes.
    """
    if agree is None:
        agree = os.environ.get("PENSTOCK_AGREE") or None
        if agree == "off":
            return None
    if agree is False:
        return None
    if isinstance(agree, str):
        kind, _, folder = agree.partition(":")
        if kind != "file" or not os.path.isabs(folder):
            raise errors.InvalidArgument(f"agree={agree!r}: wanted 'file:' and an absolute path")
        return Folder(number, size, folder, f"{job}-{name}")
    if agree is None or agree is True:
        found = _by_itself(number, size, name)
        if found is None and agree is True:
            raise errors.FailedPrecondition(
                "agree=True: torch.distributed, Horovod and jax.distributed are not "
                "initialised, and mpi4py is not imported; `agree='file:/FOLDER'` names a folder "
                "that all hosts share")
        return found
    if callable(getattr(agree, "Iprobe", None)):
        return _of_all(Mpi(agree), size, "communicator")
    if callable(getattr(agree, "allgather_object", None)) and hasattr(agree, "size"):
        return _of_all(Horovod(agree), size, "module of Horovod")
    if callable(getattr(agree, "set", None)) and callable(getattr(agree, "wait", None)):
        return _of_torch(agree, number, size, name)
    raise TypeError(
        "agree: wanted False, True, 'file:/FOLDER', a store of torch.distributed, a "
        f"communicator of mpi4py or a module of Horovod, got {agree!r}")


def _of_all(meeting: Meeting, size: int, what: str) -> Meeting:
    if meeting.size != size:
        raise errors.InvalidArgument(
            f"agree: the {what} has {meeting.size} processes, the job {size}: wanted one of "
            "exactly those that attach")
    return meeting


def _by_itself(number: int, size: int, name: str) -> Optional[Meeting]:
    # Who has not imported them has not initialised them.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        store = getattr(distributed.distributed_c10d, "_get_default_store", lambda: None)()
        if store is not None and type(store).__name__ != "FakeStore":
            return _of_torch(store, number, size, name)
    for each in ("torch", "tensorflow", "keras"):
        module = sys.modules.get(f"horovod.{each}")
        if (module is not None and hasattr(module, "allgather_object")
                and module.is_initialized() and module.size() == size):
            return Horovod(module)
    if "jax" in sys.modules:
        state = getattr(sys.modules.get("jax._src.distributed"), "global_state", None)
        client = getattr(state, "client", None)
        if client is not None:
            return _of_jax(client, number, size, name)
    mpi = sys.modules.get("mpi4py.MPI")
    if (mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized()
            and mpi.COMM_WORLD.Get_size() == size > 1):
        return Mpi(mpi.COMM_WORLD)
    return None


def _name_in(store: Any, name: str, size: int) -> str:
    return f"penstock/{urllib.parse.quote(name)}/{size}/{_count(store, f'{name}/{size}')}"


def _count(store: Any, name: str) -> int:
    key = store if isinstance(store, str) else id(store)
    _, counts = _counts.setdefault(key, (store, {}))
    while len(_counts) > _STORES_MOST:
        del _counts[next(iter(_counts))]
    counts[name] = count = counts.get(name, 0) + 1
    return count


def _of_torch(store: Any, number: int, size: int, name: str) -> Meeting:
    from datetime import timedelta

    def gone(error: RuntimeError) -> errors.Unavailable:
        return errors.Unavailable(f"the store of torch.distributed is gone: {_first_line(error)}")

    def put(key: str, value: bytes) -> None:
        try:
            store.set(key, value)
        except RuntimeError as error:
            raise gone(error) from None

    def take(keys: Sequence[str], seconds: float) -> List[Optional[bytes]]:
        try:
            store.wait(list(keys), timedelta(seconds=max(seconds, 0.001)))
        except RuntimeError as error:
            if type(error).__name__ == "DistNetworkError":
                raise gone(error) from None
            # Each one alone: a store checks only whether it has all of them.
            return [store.get(key) if store.check([key]) else None for key in keys]
        if len(keys) > 1 and getattr(store, "has_extended_api", lambda: False)():
            return list(store.multi_get(list(keys)))
        return [store.get(key) for key in keys]

    return Stored(number, size, _name_in(store, name, size), put, take)


def _of_jax(client: Any, number: int, size: int, name: str) -> Meeting:
    def put(key: str, value: bytes) -> None:
        client.key_value_set(key, value.decode())

    def take(keys: Sequence[str], seconds: float) -> List[Optional[bytes]]:
        end = time.monotonic() + seconds
        return [one(key, end) for key in keys]

    def one(key: str, end: float) -> Optional[bytes]:
        wait_ms = max(int((end - time.monotonic()) * 1000), 1)
        try:
            return bytes(client.blocking_key_value_get(key, wait_ms).encode())
        except Exception as error:  # jaxlib's class of it has no public name
            if "DEADLINE_EXCEEDED" not in str(error) and "NOT_FOUND" not in str(error):
                raise errors.Unavailable("jax.distributed's client: "
                                         f"{_first_line(error)}") from None
            return None

    return Stored(number, size, _name_in(client, name, size), put, take)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:300]


def parsed(value: Any) -> Any:
    """Of JSON; None if it is none."""
    try:
        return json.loads(value) if len(value) <= VALUE_BYTES else None
    except (TypeError, ValueError, RecursionError):
        return None
