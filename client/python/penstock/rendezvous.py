"""Rendezvous of ranks on several hosts: over torch.distributed's store, Horovod, JAX, MPI
or a shared folder."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
import socket as sockets
import sys
import time
import urllib.parse
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Tuple, Union

from penstock import errors

VALUE_BYTES = 64 * 1024  # of one process
_SETTLE_S = 3.0
_MPI_TAG, _MPI_TAGS = 21_733, 10_000  # below 32,767, the least that MPI has to take


class Missing(Exception):
    """Processes that have not come in time."""

    def __init__(self, missing: Sequence[int]):
        super().__init__(missing)
        self.missing = list(missing)


class Rendezvous:
    """``size`` processes, of which process 0 hears all and speaks to all. ``gather`` and
    ``broadcast`` follow one another, in all of them. Missing: not by ``until``."""

    until = 0.0

    def __init__(self, number: int, size: int):
        self.number, self.size = number, size

    def gather(self, value: bytes, of: Sequence[int]) -> Dict[int, bytes]:
        """Process 0 gets the values of these processes; the others get none."""
        raise NotImplementedError

    def broadcast(self, value: bytes) -> bytes:
        """All get process 0's."""
        raise NotImplementedError

    def post_and_leave(self, value: bytes) -> None:
        """Gives the first gather's value, or process 0's answer, and comes no more."""

    def settle(self, of: Sequence[int] = ()) -> None:
        """Process 0 is about to end, perhaps with what all meet by: it waits a little until
        these have heard it, who all call this."""

    def _pause(self, since: float) -> None:
        """Between two looks: short in the beginning; longer with many ranks, whose storage it is."""
        time.sleep(min(0.0005 + (time.monotonic() - since) / 20, 0.05 * max(1, self.size / 32)))


class Stored(Rendezvous):
    """Over a store of keys and values."""

    def __init__(self, number: int, size: int, name: str, put: Callable[[str, bytes], None],
                 take: Callable[[Sequence[str], float], List[Optional[bytes]]],
                 delete: Callable[[str], None] = lambda key: None,
                 keys: Optional[List[str]] = None):
        """take: waits for the keys for so many seconds at most; None: there is none. keys:
        those that this process put in earlier ones of this name."""
        super().__init__(number, size)
        self._name, self._take, self._delete = name, take, delete
        self._keys = [] if keys is None else keys
        self._former = len(self._keys)
        self._put_value = put
        self._round = 0

    def gather(self, value: bytes, of: Sequence[int]) -> Dict[int, bytes]:
        self._round += 1
        if self.number:
            if self.number in of:
                self._put(self._key(self.number), value)
            return {}
        others = [each for each in of if each]
        told = {0: value} if 0 in of else {}
        told.update(zip(others, self._wait([self._key(each) for each in others], others)))
        if len(of) == self.size:
            self._tidy()
        return told

    def broadcast(self, value: bytes) -> bytes:
        key = self._key("all")
        if self.number:
            value = self._wait([key], [0])[0]
            self._tidy()
        else:
            self._put(key, value)
        return value

    def post_and_leave(self, value: bytes) -> None:
        if self.number:
            self.gather(value, [self.number])
        else:
            self._round = 1
            self.broadcast(value)
            self.settle(range(self.size))

    def settle(self, of: Sequence[int] = ()) -> None:
        self.until = time.monotonic() + _SETTLE_S
        try:
            self.gather(b"heard", of if self.number == 0 else [self.number])
        except (Missing, errors.Unavailable):
            pass

    def _put(self, key: str, value: bytes) -> None:
        self._keys.append(key)
        self._put_value(key, value)

    def _tidy(self) -> None:
        """Those who read what this process put in earlier ones have left them."""
        former, self._former = self._keys[:self._former], 0
        del self._keys[:len(former)]
        for key in former:
            try:
                self._delete(key)
            except Exception:  # a store that cannot; one that is gone says so when it is needed
                return

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
                raise Missing([each for each, value in zip(of, found) if value is None])
        return [value or b"" for value in found]


class Folder(Rendezvous):
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
                      + f"-{size}.{_past(folder, f'{name}-{size}-{number}').count}")
        self._nonce = secrets.token_hex(4).encode()
        self._round = 0
        self._here: Optional[str] = None
        self._value: Optional[bytes] = None

    def gather(self, value: bytes, of: Sequence[int]) -> Dict[int, bytes]:
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
            for each in self._written(of):
                if each not in told:
                    found = self._read(f"{self._here}/{self._round}.{each}")
                    if found is not None:
                        self._heard[each], told[each] = found[:8], found[8:]
            if len(told) == len(of):
                break
            if self._read(self._name) not in (None, self._here.encode()):
                raise errors.FailedPrecondition(
                    f"agree='file:{self._folder}': another job named {self._run!r} has begun to "
                    "meet there: give each job its own name (`job`, PENSTOCK_JOB, torchrun's "
                    "--rdzv-id)")
            if time.monotonic() > self.until:
                raise Missing([each for each in of if each not in told])
            self._pause(since)
        if self._round == 1:  # all have left the one before
            for former in _leftovers.pop((self._folder, self._run), []):
                _remove(former)
            _leftovers[self._folder, self._run] = [
                os.path.join(self._folder, each) for each in (self._name, self._here)]
        return told

    def broadcast(self, value: bytes) -> bytes:
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
                raise Missing([0])
            self._pause(since)

    def post_and_leave(self, value: bytes) -> None:
        if not self.number:  # only those who have come hear it
            self.until = time.monotonic() + 2
            try:
                self.gather(b"", range(self.size))
            except Missing:
                pass
            self.broadcast(value)
            return
        self._round, self._value = 1, value
        self.until = time.monotonic() + 3  # for process 0 to come
        try:
            self.broadcast(b"")
        except Missing:
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
        with _storage(os.path.join(self._folder, here)):
            os.mkdir(os.path.join(self._folder, here))
        self._heard = {}
        self._write(self._name, here.encode())
        if self._is_place(former):
            _remove(os.path.join(self._folder, former))
        return here

    def _write(self, name: str, value: bytes) -> None:
        path = os.path.join(self._folder, name)
        partial = f"{path}.{os.getpid()}-{self._nonce.decode()}"
        with _storage(path):
            with open(partial, "wb") as file:
                file.write(value)
            os.replace(partial, path)

    def _read(self, name: str, more: int = 0) -> Optional[bytes]:
        path = os.path.join(self._folder, name)
        try:
            with _storage(path), open(path, "rb") as file:
                return file.read(VALUE_BYTES + 8 + more)
        except FileNotFoundError:
            return None

    def _written(self, of: Sequence[int]) -> List[int]:
        """Those whose files of this round are there: one listing costs a storage less than
        an open of each."""
        path = os.path.join(self._folder, self._here or "")
        try:
            with _storage(path), os.scandir(path) as entries:
                names = {entry.name for entry in entries}
        except FileNotFoundError:
            return []
        return [each for each in of if f"{self._round}.{each}" in names]


@contextlib.contextmanager
def _storage(path: str) -> Iterator[None]:
    """FileNotFoundError: it is not there, or another host has replaced it meanwhile."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
        raise errors.Unavailable(f"agree='file:': {path}: {error.strerror}") from None


# What the last rendezvous in a folder has left there, by its name.
_leftovers: Dict[Tuple[str, str], List[str]] = {}


def _remove(path: str) -> None:
    shutil.rmtree(path, ignore_errors=True)
    try:
        os.unlink(path)
    except OSError:
        pass  # it was a folder


class Mpi(Rendezvous):
    """A communicator of mpi4py. Each rendezvous has a tag, by which a late message of an
    earlier one is not taken for this one's."""

    def __init__(self, comm: Any):
        super().__init__(comm.Get_rank(), comm.Get_size())
        self._comm, self._tag = comm, _MPI_TAG + _past(comm, "").count % _MPI_TAGS
        self._mpi = sys.modules["mpi4py.MPI"]
        self._sent: List[Any] = []

    def gather(self, value: bytes, of: Sequence[int]) -> Dict[int, bytes]:
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

    def broadcast(self, value: bytes) -> bytes:
        if self.number:
            value = self._receive(0, [0])[1]
        else:
            for each in range(1, self.size):
                self._send(value, each)
        since = time.monotonic()
        while not self._mpi.Request.Testall(self._sent):
            if time.monotonic() > self.until:
                break  # those who have not come will not hear it
            self._pause(since)
        self._sent = []
        return value

    def post_and_leave(self, value: bytes) -> None:
        if self.number:
            self._send(value, 0)
        else:
            self.until = time.monotonic() + 1
            self.broadcast(value)

    def _send(self, value: bytes, to: int) -> None:
        buffer = bytearray(value)
        self._sent.append(self._comm.Isend([buffer, self._mpi.BYTE], dest=to, tag=self._tag))
        _under_way[:] = [each for each in _under_way if not each[0].Test()]
        _under_way.append((self._sent[-1], buffer))

    def _receive(self, source: int, missing: Sequence[int]) -> Tuple[int, bytes]:
        status = self._mpi.Status()
        since = time.monotonic()
        while not self._comm.Iprobe(source=source, tag=self._tag, status=status):
            if time.monotonic() > self.until:
                raise Missing(missing)
            self._pause(since)
        value = bytearray(status.Get_count(self._mpi.BYTE))
        self._comm.Recv([value, self._mpi.BYTE], source=status.Get_source(), tag=self._tag)
        return status.Get_source(), bytes(value)


# Requests and what they send: MPI reads it until they are over, also afterwards.
_under_way: List[Tuple[Any, bytearray]] = []


class Horovod(Rendezvous):
    """A module of Horovod (``horovod.torch``, ``horovod.tensorflow``). It has no time
    limit: its own check for stalled ranks names those that do not come."""

    def __init__(self, module: Any):
        super().__init__(module.rank(), module.size())
        self._module = module

    def gather(self, value: bytes, of: Sequence[int]) -> Dict[int, bytes]:
        told = self._module.allgather_object(value if self.number in of else None)
        return {each: told[each] for each in of} if not self.number else {}

    def broadcast(self, value: bytes) -> bytes:
        told = self._module.broadcast_object(value, root_rank=0)
        return told if isinstance(told, bytes) else b""


# ---- which one

class _Past:
    """Those of one name that this process has had, so that its n-th meets the n-th of the
    others; the keys that it has put in them."""

    def __init__(self) -> None:
        self.count = 0
        self.keys: List[str] = []


# Over each store or folder, by name. The newest stores.
_STORES_MOST = 64
_pasts: Dict[Union[int, str], Tuple[Any, Dict[str, _Past]]] = {}


def find(agree: Any, number: int, size: int, name: str, job: str) -> Optional[Rendezvous]:
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


def _of_all(rendezvous: Rendezvous, size: int, what: str) -> Rendezvous:
    if rendezvous.size != size:
        raise errors.InvalidArgument(
            f"agree: the {what} has {rendezvous.size} processes, the job {size}: wanted one of "
            "exactly those that attach")
    return rendezvous


def _by_itself(number: int, size: int, name: str) -> Optional[Rendezvous]:
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


def _past(store: Any, name: str) -> _Past:
    key = store if isinstance(store, str) else id(store)
    _, pasts = _pasts.setdefault(key, (store, {}))
    while len(_pasts) > _STORES_MOST:
        del _pasts[next(iter(_pasts))]
    past = pasts.setdefault(name, _Past())
    past.count += 1
    return past


def _stored(store: Any, number: int, size: int, name: str, put: Callable[[str, bytes], None],
            take: Callable[[Sequence[str], float], List[Optional[bytes]]],
            delete: Callable[[str], None]) -> Rendezvous:
    name = f"penstock/{urllib.parse.quote(name)}/{size}"
    past = _past(store, name)
    # A process that replaces another counts from 1 again, and finds what the first one left.
    keys = past.keys if past.count > 1 else []
    return Stored(number, size, f"{name}/{past.count}", put, take, delete, keys)


def _of_torch(store: Any, number: int, size: int, name: str) -> Rendezvous:
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

    return _stored(store, number, size, name, put, take, lambda key: store.delete_key(key))


def _of_jax(client: Any, number: int, size: int, name: str) -> Rendezvous:
    def gone(error: Exception) -> errors.Unavailable:
        return errors.Unavailable(f"jax.distributed's client: {_first_line(error)}")

    def put(key: str, value: bytes) -> None:
        try:
            client.key_value_set(key, value.decode())
        except Exception as error:  # jaxlib's class of it has no public name
            raise gone(error) from None

    def take(keys: Sequence[str], seconds: float) -> List[Optional[bytes]]:
        end = time.monotonic() + seconds
        return [one(key, end) for key in keys]

    def one(key: str, end: float) -> Optional[bytes]:
        wait_ms = max(int((end - time.monotonic()) * 1000), 1)
        try:
            return bytes(client.blocking_key_value_get(key, wait_ms).encode())
        except Exception as error:
            if "DEADLINE_EXCEEDED" not in str(error) and "NOT_FOUND" not in str(error):
                raise gone(error) from None
            return None

    return _stored(client, number, size, name, put, take,
                   lambda key: client.key_value_delete(key))


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:300]


def parsed(value: Any) -> Any:
    """Of JSON; None if it is none."""
    try:
        return json.loads(value) if len(value) <= VALUE_BYTES else None
    except (TypeError, ValueError, RecursionError):
        return None
