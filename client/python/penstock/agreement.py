"""The ranks of several hosts compare what must be the same on all of them, once, when
they attach. Brokers of several hosts do not talk to each other; the ranks do, by what
they have: torch.distributed's store, Horovod, JAX's distributed client, MPI, or a folder
that all hosts share.

Process 0 hears a digest of each process. Where these differ, it asks one process of each
kind for more, until it knows the first difference, which all are told. What comes from
others is bounded and checked: they may be of another version."""

from __future__ import annotations

import itertools
import hashlib
import json
import os
import re
import secrets
import shutil
import socket as sockets
import sys
import time
import urllib.parse
from typing import (Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple, Union)

from penstock import _core, errors

_VALUE_BYTES = 64 * 1024  # of one process
_WAIT_S = 600.0  # the default of attach's wait_s
_FILES_MOST = 64 ** 5  # the broker tells of 64 shares at once
_KINDS_MOST = 16  # of fingerprints that are looked into
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
                    mine = _parsed(others)
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
                return file.read(_VALUE_BYTES + 8 + more)
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


# ---- what they say

def compare(meeting: Meeting, core: _core.Reader, broker: str, wait_s: float) -> None:
    """All processes of the job call it. broker: its socket, "" where it is the host's.

    Raises:
      FailedPrecondition: the hosts disagree; with the first difference.
      DeadlineExceeded: some have not come; with their numbers.
    """
    try:
        parts = core.fingerprint("")
        begin = _parsed(dict(json.loads(parts)).get("begin"))
        state = json.loads(core.state())
        moved = begin != {name: state[name] for name in ("epoch", "row")}
        value = _hello(digest=_digest(parts), moved=moved, broker=_digest(broker),
                       old=moved or bool(core.replaces))
    except errors.Error as error:  # a broker of another version
        value = _hello(error=str(error))
    if core.replaces and isinstance(meeting, Folder):
        # One that was started in a dead one's place: its host has been compared, and
        # nobody meets it, unless all wait for it.
        if meeting.number:
            meeting.hand_in(value)
        return
    _meet(meeting, value, wait_s, _first_difference,
          lambda part: core.fingerprint(part).encode())


def excuse(meeting: Meeting, error: Exception) -> None:
    """This process could not attach: the others need not wait for it."""
    text = f"rank {meeting.number} on {sockets.gethostname()} could not attach: {error}"
    try:
        meeting.hand_in(_hello(error=str(error)) if meeting.number else
                        json.dumps({"end": text[:4000]}).encode())
    except Exception:  # the error of the attach counts
        pass


def agree_on_weights(meeting: Meeting, core: _core.Reader,
                     weights: Optional[List[float]], wait_s: float) -> Tuple[int, int]:
    """All processes of the job call it, and none takes a batch meanwhile: the row that
    is free on all hosts stays so. Returns the epoch and the row.

    Raises: as of ``set_weights``."""
    try:
        value = _hello(weights=weights, free=core.first_free_row())
    except errors.Error as error:
        value = _hello(error=str(error))
    chosen = _parsed(_meet(meeting, value, wait_s, _choose_row, None))
    if not (isinstance(chosen, list) and len(chosen) == 3):
        raise errors.FailedPrecondition("weights: process 0 is of another version")
    weights, epoch, row = chosen
    value = _hello()
    try:
        core.set_weights(weights, epoch, row)
    except errors.Error as error:
        value = _hello(error=f"{error}. Where others have changed the weights, begin all ranks at "
                             "a state")
    _meet(meeting, value, wait_s, lambda told, ask: "", None)
    return epoch, row


Told = Dict[int, Dict[str, Any]]
Ask = Callable[[str, Sequence[int]], Dict[int, Any]]


class _Disagree(Exception):
    """What all are to be told."""


def _hello(**value: Any) -> bytes:
    value = {"host": sockets.gethostname()[:100], **value}
    if "error" in value:
        value["error"] = value["error"][:2000]
    return json.dumps(value).encode()


def _meet(meeting: Meeting, value: bytes, wait_s: float, decide: Callable[[Told, Ask], str],
          answer: Optional[Callable[[str], bytes]]) -> bytes:
    """What process 0 decides by the values of all. decide: of process 0; it may ask some
    for more, which answer gives."""
    begin = time.monotonic()
    meeting.until = begin + (wait_s or _WAIT_S)
    # Process 0 tells the others who has not come; they wait a little longer.
    if meeting.number:
        meeting.until += min(10.0, 1 + (wait_s or _WAIT_S) / 10)

    def ask(what: str, of: Sequence[int]) -> Dict[int, Any]:
        meeting.tell(json.dumps({"ask": what, "of": list(of)}).encode())
        return {each: _parsed(told) for each, told in
                meeting.gather(answered(what) if 0 in of else b"", of).items()}

    def answered(what: str) -> bytes:
        try:
            return answer(what) if answer else b""
        except (errors.Error, ValueError) as error:  # ValueError: a name with a NUL
            return json.dumps({"error": str(error)[:2000]}).encode()

    everybody = range(meeting.size)
    if meeting.number:
        try:
            meeting.gather(value, everybody)
            for _ in range(32):
                told = meeting.tell(b"")
                step = _parsed(told)
                if not isinstance(step, dict) or not ({"end", "ask"} & set(step)):
                    break
                if "end" in step:
                    if step["end"]:
                        meeting.settle()
                        raise _error_of(str(step["end"]))
                    return json.dumps(step.get("result")).encode()
                of = step.get("of")
                of = of if isinstance(of, list) else []
                meeting.gather(answered(str(step["ask"])) if meeting.number in of else b"", of)
            raise errors.FailedPrecondition("the ranks compare their hosts, and process 0 is of "
                                            "another version")
        except Late:
            raise errors.DeadlineExceeded(
                f"this rank's host compares itself with the others, and process 0 has not "
                f"answered for {time.monotonic() - begin:.0f} s (wait_s): it has not come "
                "to this attach, or has died") from None
    text, result = "", None
    try:
        told_all = meeting.gather(value, everybody)
        hellos = {each: _checked(each, told) for each, told in told_all.items()}
        for each, hello in hellos.items():
            if hello.get("error"):
                raise _Disagree(f"rank {each} on {hello['host']}: {hello['error']}")
        result = decide(hellos, ask)
    except Late as late:
        text = (f"{_LATE} {ranks_text(late.missing)} within {wait_s or _WAIT_S:.0f} s "
                "(wait_s): they have not come to this attach, or have died; each rank of "
                "the job has to attach to the same dataset, in the same order")
    except _Disagree as difference:
        text = str(difference)
    meeting.until = max(meeting.until, time.monotonic() + 5)
    meeting.tell(json.dumps({"end": text, "result": result}).encode())
    if text:
        meeting.settle()
        raise _error_of(text)
    return json.dumps(result).encode()


_LATE = "the ranks of all hosts compare what they have, and nothing came of"


def _error_of(text: str) -> errors.Error:
    return (errors.DeadlineExceeded if text.startswith(_LATE) else errors.FailedPrecondition)(text)


def _first_difference(hellos: Told, ask: Ask) -> str:
    """Nothing, if all agree."""
    kinds: Dict[str, List[int]] = {}
    for each, hello in hellos.items():
        kinds.setdefault(str(hello.get("digest"))[:64], []).append(each)
    if len(kinds) > 1:
        members = {of[0]: of for of in list(kinds.values())[:_KINDS_MOST]}
        raise _Disagree(_explain(members, hellos, ask))
    of_broker: Dict[Tuple[str, str], List[int]] = {}
    for each, hello in hellos.items():
        of_broker.setdefault((hello["host"], str(hello.get("broker"))), []).append(each)
    moved = [each for each, hello in hellos.items() if hello.get("moved") is True]
    new = [each for of in of_broker.values() for each in of
           if not any(hellos[other].get("old") is True for other in of)]
    if moved and new:
        raise _Disagree(
            f"the job goes on from an earlier launch on {hosts_text(moved, hellos)}, and begins on "
            f"{hosts_text(new, hellos)}: rows would be lost or come twice. Begin all ranks at a "
            "state of a checkpoint (`state`), or give the job another name (`job`)")
    return ""


def _explain(members: Dict[int, List[int]], hellos: Told, ask: Ask) -> str:
    """members: of one process of each kind, all of them."""
    def each_on(values: Mapping[int, str]) -> str:
        alike: Dict[str, List[int]] = {}
        for one, value in values.items():
            alike.setdefault(value, []).extend(members[one])
        return "; ".join(f"{value} on {hosts_text(of, hellos)}" for value, of in alike.items())

    asked = list(members)
    parts = {each: _parts(told) for each, told in ask("", asked).items()}
    names = list(dict.fromkeys(itertools.chain(*parts.values())))
    name = next((name for name in names if len({parts[each].get(name) for each in asked}) > 1), None)
    if name is None:
        return ("the hosts' fingerprints differ, and they do not say where: install the same "
                "version of penstock on all hosts")
    if name == "data":
        difference = _file_difference(asked, ask, each_on)
    else:
        texts = {each: parts[each].get(name, "nothing") for each in asked}
        if any(text.startswith("#") for text in texts.values()):
            texts = {each: str(told.get("text") if isinstance(told, dict) else told)
                     for each, told in ask(name, asked).items()}
        path, texts = _where(texts)
        difference = f"{name}{path}: {each_on(texts)}"
    return f"the hosts disagree. {difference}. {_WAY_OUT.get(name, _SPEC_WAY_OUT)}"


_SPEC_WAY_OUT = ("Give all ranks the same spec and options, or attach with `agree=False` where "
                 "they are to differ")
_WAY_OUT = {
    "penstock": "Install the same version on all hosts",
    "layout": "Install the same version on all hosts",
    "data": "Give all hosts the same files, or attach with `agree=False` where they are to differ",
    "records": "Give all hosts the same files",
    "files of map and select": "Give all hosts the same files",
    "begin": "Give all ranks the state of the same checkpoint",
    "owed": "Give all ranks the state of the same checkpoint",
    "weights": "Give all ranks the state of the same checkpoint"}


def _file_difference(asked: Sequence[int], ask: Ask,
                     each_on: Callable[[Mapping[int, str]], str]) -> str:
    first, count = 0, _FILES_MOST
    while True:
        told = ask(f"files {first} {count}", asked)
        files = {each: _files(told.get(each)) for each in asked}
        i = next((i for i, row in enumerate(itertools.zip_longest(
            *(files[each][1] for each in asked))) if len(set(row)) > 1), None)
        if i is None:
            return ("data: the files have the same names and sizes, and other records in them: "
                    "some have the same size and another content")
        if count <= 64:
            break
        count = max(count // 64, 1)
        first += i * count
    found = {each: entries[i] if i < len(entries) else None
             for each, (_, entries) in files.items()}
    totals = {each: f"{total} files" for each, (total, _) in files.items()}
    counts = f" ({each_on(totals)})" if len(set(totals.values())) > 1 else ""
    names = sorted({entry[0] for entry in found.values() if entry})
    if len(names) == 1 and None not in found.values():
        return "data: the file {!r} has {}".format(
            names[0], each_on({each: f"{entry[1]} bytes" for each, entry in found.items()
                               if entry}))
    have = {each: "there" for each, entry in found.items() if entry and entry[0] == names[0]}
    lack = {each: "missing" for each in asked if each not in have}
    # The first name that some lack, where the lists are sorted.
    if all(list(entries) == sorted(entries) for _, entries in files.values()):
        return f"data: the file {names[0]!r} is {each_on({**have, **lack})}{counts}"
    return (f"data: file {first + i} of the list is "
            + each_on({each: repr(entry[0]) if entry else "missing"
                       for each, entry in found.items()}) + counts)


def _where(texts: Dict[int, str]) -> Tuple[str, Dict[int, str]]:
    """The path of the first value that differs in these texts of JSON, and the values."""
    values = {each: _parsed(text.encode()) for each, text in texts.items()}
    path = ""
    while True:
        kinds = {type(value) for value in values.values()}
        keys: Iterator[Any] = iter(())
        if kinds == {dict}:
            keys = iter(dict.fromkeys(itertools.chain(*values.values())))
        elif kinds == {list}:
            keys = iter(range(max(map(len, values.values()))))
        for key in keys:
            inner = {each: (value[key] if key in value else None) if isinstance(value, dict)
                     else value[key] if key < len(value) else None
                     for each, value in values.items()}
            if len({json.dumps(value) for value in inner.values()}) > 1:
                values, path = inner, path + (f"[{key}]" if isinstance(key, int) else f".{key}")
                break
        else:
            # A text that is no JSON has been left as it is.
            shown = {each: json.dumps(value) if value is not None or path else texts[each]
                     for each, value in values.items()}
            return path, {each: text if len(text) <= 100 else text[:100] + "…"
                          for each, text in shown.items()}


def _choose_row(hellos: Told, ask: Ask) -> Any:
    proposed: Dict[str, int] = {}
    free = []
    for each, hello in hellos.items():
        weights, row = hello.get("weights"), hello.get("free")
        if weights is not None and not _numbers(weights):
            raise _Disagree(f"weights: rank {each} proposes what are no weights")
        if row is None or not _numbers(row) or len(row) != 2:
            raise _Disagree(f"weights: rank {each} is of another version")
        if weights is not None:
            proposed.setdefault(json.dumps(weights), each)
        free.append((int(row[0]), int(row[1])))
    if len(proposed) != 1:
        raise _Disagree("weights: " + (
            "no rank proposes any: one at least gives them" if not proposed else
            "; ".join(f"rank {each} proposes {weights[:200]}"
                      for weights, each in itertools.islice(proposed.items(), 4))))
    return [json.loads(next(iter(proposed))), *max(free)]


# ---- values of others, who may be of another version

def _parsed(value: Any) -> Any:
    """Of JSON; None if it is none."""
    try:
        return json.loads(value) if len(value) <= _VALUE_BYTES else None
    except (TypeError, ValueError, RecursionError):
        return None


def _checked(number: int, value: Any) -> Dict[str, Any]:
    hello = _parsed(value)
    if not isinstance(hello, dict) or not isinstance(hello.get("host"), str):
        raise _Disagree(f"rank {number} says what is no fingerprint ({len(value or b'')} bytes): "
                        "it is of another version of penstock, or another program uses its "
                        "store, run id or tag")
    hello["host"] = _printable(hello["host"][:100])
    if "error" in hello:
        hello["error"] = _printable(str(hello["error"])[:2000])
    return hello


def _parts(told: Any) -> Dict[str, str]:
    if isinstance(told, dict):
        raise _Disagree("the hosts disagree, and one cannot say where: "
                        f"{_printable(str(told.get('error'))[:500])}")
    if not isinstance(told, list):
        return {}
    return {_printable(str(part[0])[:100]): _printable(str(part[1])[:200])
            for part in told[:100] if isinstance(part, list) and len(part) == 2}


def _files(told: Any) -> Tuple[int, List[Any]]:
    """How many in all, and digests or (name, bytes)."""
    told = told if isinstance(told, dict) else {}
    if "names" in told and isinstance(told["names"], list):
        entries: List[Any] = [(_printable(str(entry[0])[:1000]), str(entry[1])[:20])
                              for entry in told["names"][:64]
                              if isinstance(entry, list) and len(entry) == 2]
    else:
        digests = told.get("digests")
        entries = [str(each)[:64] for each in digests[:64]] if isinstance(digests, list) else []
    total = told.get("files")
    return total if isinstance(total, int) else 0, entries


def _numbers(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= 65_536 and all(
        isinstance(each, (int, float)) and not isinstance(each, bool) for each in value)


def _printable(text: str) -> str:
    return "".join(each if each.isprintable() else "?" for each in text)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [""])[0][:300]


# ---- for people

def ranks_text(numbers: Sequence[int]) -> str:
    """ "rank 3", "ranks 0 to 7 and 16" """
    numbers = sorted(numbers)
    runs: List[List[int]] = []
    for each in numbers:
        if runs and each == runs[-1][-1] + 1:
            runs[-1][1:] = [each]
        else:
            runs.append([each])
    texts = [f"{run[0]} to {run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    if len(texts) > 8:
        texts = texts[:8] + [f"{len(texts) - 8} more"]
    joined = ", ".join(texts[:-1]) + " and " + texts[-1] if len(texts) > 1 else texts[0]
    return ("rank " if len(numbers) == 1 else "ranks ") + joined


def hosts_text(numbers: Sequence[int], hellos: Told) -> str:
    """ "a (ranks 0 to 7) and b (ranks 8 to 15)" """
    of_host: Dict[str, List[int]] = {}
    for each in numbers:
        of_host.setdefault(hellos[each]["host"], []).append(each)
    texts = [f"{host} ({ranks_text(of)})" for host, of in of_host.items()]
    if len(texts) > 8:
        texts = texts[:8] + [f"{len(texts) - 8} more hosts"]
    return " and ".join(filter(None, [", ".join(texts[:-1]), texts[-1]]))


def name_of(options: Mapping[str, Any]) -> str:
    """The dataset's name, also where attaching fails; "": not known."""
    text = options.get("spec")
    path = options.get("dataset") or os.fsencode(os.environ.get("PENSTOCK_DATASET", ""))
    if text is None and path:
        if b"/" not in path and not path.endswith((b".yaml", b".yml", b".json")):
            return os.fsdecode(path)
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                text = file.read(_VALUE_BYTES)
        except OSError:
            return ""
    found = re.search(r"""(?:^|[{,\n])\s*["']?dataset["']?\s*:\s*["']?([\w.-]+)""", text or "")
    return found[1] if found else ""
