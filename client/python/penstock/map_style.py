"""Datasets of other libraries: anything with ``__len__`` and ``__getitem__``.

The object is pickled into the folder of a private broker, whose processes load it
and make its samples, once for all ranks of the host. Large arrays stay in the file,
which all processes map: they are in memory once. No service takes such an object:
loading a pickle runs its code.
"""

from __future__ import annotations

import collections.abc
import contextlib
import copy
import fcntl
import importlib
import io
import json
import mmap
import os
import pickle
import re
import struct
import sys
import tempfile
import threading
import warnings
import zlib
from typing import (Any, Callable, Dict, Iterator, List, NamedTuple, Optional,
                    Tuple)

import numpy as np

from penstock import _core, errors, template
from penstock.dataset import Dataset
from penstock.private_broker import environment
from penstock.spec_values import given

# Where buffers begin in the file: any dtype is aligned, and pages are whole.
_ALIGN = 4096
_HEAD = struct.Struct("<8sQQ")  # magic, place of the table, number of pieces
# Files that are written while the template serves.
_MEANWHILE_BYTES_MIN = 16 << 20
# The head of a batch, before the places of its buffers.
_HEAD_BYTES = 48
# Buffers that are worth a place of their own.
_BUFFER_BYTES_MIN = 4096

# Values that are compared between ranks as they are written.
_PLAIN = (bool, int, float, str, bytes, np.generic)
_SOME = 1000  # items at each end of a list, array or tensor that are compared
_SOME_BYTES = 1 << 20
_FEW = 16  # parts of a tuple that are looked into


class Ranks(NamedTuple):
    """Ranks that no launcher's variables number."""

    rank: int
    world_size: int
    local_world_size: int
    launch: str  # a name, the same for all of them

    def environment(self) -> Dict[str, str]:
        """The variables of a launcher that would number them."""
        return {"PENSTOCK_RANK": str(self.rank),
                "PENSTOCK_WORLD_SIZE": str(self.world_size),
                "PENSTOCK_LOCAL_WORLD_SIZE": str(self.local_world_size),
                "MASTER_ADDR": self.launch, "MASTER_PORT": "0"}


def warn(text: str) -> None:
    """At the line that called this package."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and (
            frame.f_globals.get("__name__", "").startswith("penstock.")):
        frame, level = frame.f_back, level + 1
    warnings.warn(text, stacklevel=level)


def own_socket(ranks: Optional[Ranks] = None) -> str:
    """The socket of this program's own broker: PENSTOCK_SOCKET where a private one
    was started for it (``penstock run``, ``penstock.broker()``), else one that the
    ranks of this host start for themselves."""
    if sys.executable:  # it loads what this interpreter pickled
        os.environ.setdefault("PENSTOCK_PYTHON", sys.executable)
    if os.environ.get("PENSTOCK_SOCKET"):
        return os.environ["PENSTOCK_SOCKET"]
    with environment({} if ranks is None else ranks.environment()):
        # What is needed next is imported while the broker starts.
        imports = threading.Thread(target=importlib.import_module, args=["cloudpickle"])
        imports.start()
        try:
            return _core.own_broker()
        finally:
            imports.join()


def spec_of(name: str, socket: str, dataset: Any, *,
            collate_fn: Callable[[List[Any]], Any], batch_size: int = 1,
            sampler: Any = None,
            worker_init_fn: Optional[Callable[[int], None]] = None, seed: int = 0,
            on_error: str = "fail", max_bytes: Optional[int] = None,
            processes: Optional[int] = None, **iterable: Any
            ) -> Tuple[Dataset, Callable[[], None]]:
    """A Dataset whose batches are made of an object's samples.

    Args:
      name: the job's; all ranks pickle the same object under it, and the first file
        is taken.
      collate_fn: makes a batch of a list of samples, in the process.
      batch_size: of a rank. 0: the sampler gives lists of indices, each a batch.
      sampler: gives the order of each epoch, in which the dataset is read.
      worker_init_fn: called in each process with its number.
      on_error: "fail", "skip", or "substitute".
      seed: with the process's number that of ``get_worker_info``.
      max_bytes: the most that a batch may have.
      processes: how many make samples.
      iterable: of an iterable dataset: iterable=True, drop_last, and begin, the
        position that a batch came with.

    Returns:
      It, and what to call when no more processes will be wanted.

    Raises:
      TypeError: the object cannot be pickled.
      FailedPrecondition: the broker is no private one of this user.
    """
    path, withdraw = _write(
        os.path.join(os.path.dirname(socket), "datasets"), name, socket,
        {"dataset": dataset, "sampler": sampler, "collate_fn": collate_fn,
         "batch_size": batch_size, "worker_init_fn": worker_init_fn, "seed": seed,
         "on_error": on_error, **iterable})
    # Other loaders of the same data take its state.
    return Dataset({"dataset": type_name(dataset), "source": {"python": given(
        object=path, max_bytes=max_bytes, processes=processes)}}), withdraw


def type_name(dataset: Any) -> str:
    """The name of its class, as a name of a dataset."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", type(dataset).__name__)[:40]


def launch(ranks: Optional[Ranks] = None) -> str:
    """A name for what started this process: the same in all ranks of this host,
    and in a rank that is started again."""
    if ranks is not None:
        return ranks.launch
    return str(os.getpid() if _core.launch()[0] == "none" else os.getppid())


def _write(folder: str, name: str, socket: str,
           value: Dict[str, Any]) -> Tuple[str, Callable[[], None]]:
    """Pickles value into a file that appears whole; leaves one that is there. Where
    this program can be forked, it offers a template too; the file is for when that
    ends. It goes with the last loader that uses it."""
    path = os.path.join(folder, name + ".pickle")
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise errors.FailedPrecondition(
            f"{folder}: {error.strerror}: only a private broker of this user takes a "
            "dataset that is an object; unset PENSTOCK_SOCKET, or use `with "
            "penstock.broker():`") from None
    leave = _use(path, {"dataset": value["dataset"], "sampler": value["sampler"]})
    try:
        return path, _write_in_use(folder, path, socket, value, leave)
    except BaseException:
        leave()
        raise


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def _end_bytes(value: Any, length: int) -> Optional[bytes]:
    """Some items at both ends of an array or tensor; None: it is none."""
    if length <= 0:
        return None
    if _is_tensor(value):
        torch = sys.modules["torch"]
        if value.device.type != "cpu" or value.layout is not torch.strided:
            return None
        def raw(part: Any) -> bytes:
            return bytes(part.detach().contiguous().reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, np.ndarray) and value.dtype.kind != "O":
        def raw(part: Any) -> bytes:
            return bytes(part.tobytes())
    else:
        return None
    some = max(1, min(_SOME, _SOME_BYTES * length // max(1, value.nbytes)))
    return raw(value[:some]) + raw(value[max(0, length - some):])


def _facts(name: str, value: Any, rows: int, depth: int = 3) -> Dict[str, str]:
    """What tells one rank's part of a dataset of so many rows from another's: lengths,
    numbers, and some items of lists, arrays and tensors. Those that are as long as the
    dataset have names that begin with "rows of"."""
    if isinstance(value, (bool, int, float, range)):
        return {name: repr(value)}
    facts: Dict[str, str] = {}
    length = -1
    if hasattr(value, "__len__") and not isinstance(value, (str, bytes)):
        with contextlib.suppress(Exception):
            length = len(value)
            facts[f"len({name})"] = str(length)
    items = None
    with contextlib.suppress(Exception):  # of a kind without bytes
        items = _end_bytes(value, length)
    if isinstance(value, (list, tuple)):
        some = [*value[:_SOME], *value[max(0, length - _SOME):]]
        if all(isinstance(each, _PLAIN) for each in some):
            items = repr(some).encode("utf-8", "replace")
        elif depth > 0 and length <= _FEW:
            for place, each in enumerate(value):
                facts.update(_facts(f"{name}[{place}]", each, rows, depth - 1))
    elif items is None and depth > 0:
        for key, each in getattr(value, "__dict__", {}).items():
            if isinstance(each, (*_PLAIN[:3], range, list, tuple, np.ndarray)) or (
                    key in ("dataset", "data_source", "sampler")) or _is_tensor(each):
                facts.update(_facts(f"{name}.{key}", each, rows, depth - 1))
    if items is not None:
        facts["rows of " * (length == rows) + name] = str(zlib.crc32(items))
    return facts


def _check_same(facts: Dict[str, str], first: Dict[str, str]) -> None:
    """ValueError: a rank has other data than the one that came first. Warns of other
    numbers in it."""
    differ = sorted(name for name in {*facts, *first}
                    if facts.get(name) != first.get(name))
    if not differ:
        return
    text = (f"{', '.join(differ[:3])} of this rank and of the rank that came first "
            "differ, and all ranks share the samples of that one: give each rank all of "
            "the data; rows of one rank alone: `rank=0, world_size=1`")
    if any(name.startswith("rows of ") or name.endswith(".indices") or "." not in name
           for name in differ):
        raise ValueError(text)
    warn(text)


def _use(path: str, parts: Dict[str, Any]) -> Callable[[], None]:
    """Marks the file as used, until what is returned is called; the last one to do so
    removes it, and its socket. ValueError: other ranks use it with other parts."""
    rows = -1
    with contextlib.suppress(Exception):
        rows = len(parts["dataset"])
    facts = {key: each for name, value in parts.items() if value is not None
             for key, each in _facts(name, value, rows).items()}
    while True:
        descriptor = os.open(path + ".users", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_size == 0:
                os.write(descriptor, json.dumps(facts).encode())
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path + ".users").st_ino == os.fstat(descriptor).st_ino:
                break
        os.close(descriptor)  # removed meanwhile
    try:
        size = os.fstat(descriptor).st_size
        _check_same(facts, json.loads(os.pread(descriptor, size, 0) or "{}"))
    except BaseException:
        os.close(descriptor)
        raise
    template.OWN_DESCRIPTORS.add(descriptor)
    process = os.getpid()

    def leave() -> None:
        if os.getpid() != process:  # a fork's, of which the parent has the loader
            return
        template.OWN_DESCRIPTORS.discard(descriptor)
        with contextlib.suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for suffix in ("", ".socket", ".users"):
                template.withdraw(path + suffix)
        os.close(descriptor)

    return leave


def _write_in_use(folder: str, path: str, socket: str, value: Dict[str, Any],
                  leave: Callable[[], None]) -> Callable[[], None]:
    """Returns what to call when this loader needs no more processes."""
    listens = path + ".socket"
    if os.path.exists(path) or os.path.exists(listens):
        return leave
    try:
        pieces = _pieces(value)
    except Exception as error:
        raise TypeError(
            f"{_unpicklable(type(value['dataset']).__name__, value['dataset'])} cannot "
            f"be pickled for the processes that make its samples: {error}. What cannot be pickled (open files, "
            "connections, locks, generators) is opened in __getitem__, or by a "
            "factory: penstock.Dataset.python") from error
    offered = template.offer(listens, socket, value, pieces.clear) if (
        template.can_fork()) else (lambda: False)
    try:
        if sum(map(len, pieces)) > _MEANWHILE_BYTES_MIN and offered():
            template.meanwhile(lambda: _write_file(folder, path, pieces, listens))()
        else:
            _write_file(folder, path, pieces)
    except BaseException:
        offered()
        template.withdraw(listens)
        raise
    if not offered():
        return leave

    def end() -> None:
        template.withdraw(listens)
        leave()

    return end


def _unpicklable(name: str, value: Any, depth: int = 4) -> str:
    """The innermost attribute of it that cannot be pickled, by its name."""
    for key, each in (vars(value) if hasattr(value, "__dict__") else {}).items():
        try:
            _pickler(io.BytesIO(), []).dump(each)
        except Exception:
            part = f"{name}.{key}"
            return _unpicklable(part, each, depth - 1) if depth > 0 else part
    return name


def _write_file(folder: str, path: str, pieces: List[Any],
                beside: Optional[str] = None) -> None:
    """beside: another file, without which it is of no use any more."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".") as file:
        places = []
        file.write(bytes(_HEAD.size))
        for piece in pieces:
            at = -(-file.tell() // _ALIGN) * _ALIGN
            file.seek(at)
            file.write(piece)
            places += [at, len(piece)]
        at = file.tell()
        file.write(struct.pack(f"<{len(places)}Q", *places))
        file.seek(0)
        file.write(_HEAD.pack(b"PENSTOCK", at, len(pieces)))
        file.flush()
        if beside is not None and not os.path.exists(beside):
            return
        try:
            os.link(file.name, path)
        except FileExistsError:
            pass  # of another rank


def _pieces(value: Dict[str, Any]) -> List[Any]:
    """Of the file: where it was pickled, the pickle, its buffers."""
    buffers: List[pickle.PickleBuffer] = []
    pickled = io.BytesIO()
    _pickler(pickled, buffers).dump(value)
    setting = json.dumps({"path": [os.path.abspath(each) for each in sys.path],
                          "folder": os.getcwd()}).encode()
    return [setting, pickled.getbuffer(), *(each.raw() for each in buffers)]


def _pickler(file: Any, buffers: List[pickle.PickleBuffer]) -> Any:
    """cloudpickle's, which takes classes of the script and lambdas. Arrays go into
    buffers; a memory map is pickled as the name of its file."""
    import cloudpickle

    def keep(buffer: pickle.PickleBuffer) -> bool:
        """False: its bytes go into a place of their own."""
        if buffer.raw().nbytes < _BUFFER_BYTES_MIN:
            return True
        buffers.append(buffer)
        return False

    if "__mp_main__" in sys.modules:  # the script's name in what it has spawned
        cloudpickle.register_pickle_by_value(sys.modules["__mp_main__"])

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, value: Any) -> Any:
            if isinstance(value, np.memmap):
                reduced = _reduced_memmap(value)
                if reduced is not None:
                    return reduced
            torch = sys.modules.get("torch")
            if torch is not None and type(value) is torch.Tensor:
                reduced = _reduced_tensor(torch, value)
                if reduced is not None:
                    return reduced
            return super().reducer_override(value)

    return Pickler(file, protocol=5, buffer_callback=keep)


def _reduced_memmap(value: np.memmap) -> Optional[Tuple[Any, ...]]:
    """A map of a file, by its name; a part of one too, if it is contiguous."""
    mapping = getattr(value, "_mmap", None)
    if (mapping is None or value.filename is None or value.mode not in ("r", "c")
            or not value.flags.c_contiguous or value.size == 0):
        return None
    begin = np.frombuffer(mapping, np.uint8).ctypes.data
    # A map begins at a page; `offset` of a part is still that of the whole.
    page = value.offset - value.offset % mmap.ALLOCATIONGRANULARITY
    return (np.memmap, (os.path.abspath(value.filename), value.dtype, value.mode,
                        page + value.ctypes.data - begin, value.shape))


def _reduced_tensor(torch: Any, value: Any) -> Optional[Tuple[Any, ...]]:
    """A plain tensor of the CPU, by NumPy's array of its memory."""
    if (value.device.type != "cpu" or value.layout is not torch.strided
            or value.requires_grad or value.is_neg() or value.is_conj()
            or value.numel() == 0):
        return None
    try:
        return torch.from_numpy, (value.contiguous().numpy(),)
    except (TypeError, RuntimeError):  # bfloat16 and others: as torch does it
        return None


class OfRanks:
    """The indices of all ranks, of a sampler that gives each rank its own: of each
    step the first rank's batch first."""

    def __init__(self, sampler: Any, batch_size: int):
        self._sampler, self._batch_size = sampler, batch_size

    def set_epoch(self, epoch: int) -> None:
        """Of the sampler."""
        self._sampler.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._sampler) * int(self._sampler.num_replicas)

    def __iter__(self) -> Iterator[int]:
        parts = [list(self._of(rank)) for rank in range(self._sampler.num_replicas)]
        for rank, part in enumerate(parts):
            if len(part) != len(parts[0]):
                raise ValueError(f"the sampler gave {len(parts[0])} indices to rank 0 "
                                 f"and {len(part)} to rank {rank}: wanted equally many")
        for at in range(0, len(parts[0]), self._batch_size):
            for part in parts:
                yield from part[at:at + self._batch_size]

    def _of(self, rank: int) -> Any:
        sampler = copy.copy(self._sampler)
        sampler.rank = rank
        return sampler


# ---- what ranks get


@contextlib.contextmanager
def raising() -> Iterator[None]:
    """Raises what the dataset has raised as an exception of its own type, as
    PyTorch does for its workers; a type that takes no text, or that this process
    does not have, as the error of Penstock, which is the cause otherwise."""
    caught = errors.Error  # a loop may be left behind when the interpreter ends
    try:
        yield
    except caught as error:
        raised = raised_in(str(error))
        if raised is None:
            raise
        raise raised from error


# The last line of a traceback, behind its last frame.
_RAISED = re.compile(r"Traceback \(most recent call last\):\n(?: .*\n)+"
                     r"([A-Za-z_][\w.]*)(?=[:;\n]|$)")


class _Verbatim(str):
    """A text that KeyError shows as it is."""

    def __repr__(self) -> str:
        return str(self)


def raised_in(text: str) -> Optional[Exception]:
    """An exception of the type that the last traceback in the text ends with."""
    names = _RAISED.findall(text)
    if not names:
        return None
    module, _, name = names[-1].rpartition(".")
    kind = getattr(sys.modules.get(module or "builtins"), name, None)
    if not isinstance(kind, type) or not issubclass(kind, Exception):
        return None
    if kind is StopIteration:  # which would end the loop, on this rank alone
        kind = RuntimeError
    try:
        return kind(_Verbatim(text) if issubclass(kind, KeyError) else text)
    except Exception:  # its __init__ wants something else
        return None


class Failure(NamedTuple):
    """What a batch is where a sample has raised."""

    text: str

    def error(self) -> Exception:
        """As the type that was raised, with Penstock's as the cause."""
        cause = errors.DataLoss(self.text)
        raised = raised_in(self.text)
        if raised is None:
            return cause
        raised.__cause__ = cause
        return raised


class _Unpickler(pickle.Unpickler):
    """Of a batch whose tensors are parts of another one's memory."""

    def __init__(self, file: Any, tensor: Callable[[int], Any], **options: Any):
        super().__init__(file, **options)
        self._tensor = tensor

    def persistent_load(self, place: Any) -> Any:
        if isinstance(place[0], str):
            return _tuple_class(*place)
        number, dtype, shape = place
        return self._tensor(number).view(dtype).reshape(shape)


def _tuple_class(module: str, qualname: str, fields: Tuple[str, ...]) -> Any:
    """This program's class of named tuples, the newest one, or one like it."""
    for each in reversed(tuple.__subclasses__()):
        if (each.__module__, each.__qualname__, getattr(each, "_fields", None)) == (
                module, qualname, fields):
            return each
    return collections.namedtuple(qualname.rpartition(".")[2], fields)


def load_batch(memory: np.ndarray, whole: Callable[[int], Any]) -> Any:
    """The batch that lies in memory (broker/source/python_batches.py says how).

    Args:
      memory: uint8 [bytes], the batch at its beginning.
      whole: gives a torch.Tensor uint8 of its first bytes; tensors of the batch are
        parts of it.
    """
    size, at, pickled, tensors, others, _ = memory[:_HEAD_BYTES].view("<u8").tolist()
    count = tensors + others
    places = memory[_HEAD_BYTES:_HEAD_BYTES + 16 * count].view("<u8").reshape(
        count, 2).tolist()
    if pickled == 0:
        (offset, nbytes), = places
        return Failure(memory[offset:offset + nbytes].tobytes().decode("utf-8", "replace"))
    taken: List[Any] = []

    def tensor(number: int) -> Any:
        if not taken:
            taken.append(whole(size))
        offset, nbytes = places[number]
        part = taken[0][offset:offset + nbytes]
        # One of its own storage: else each is saved, copied, resized with all others.
        return sys.modules["torch"].from_numpy(part.numpy()) if (
            part.device.type == "cpu" and not part.is_pinned()) else part

    # Arrays are the rank's own, as those of PyTorch's workers are.
    arrays = (bytearray(memory[offset:offset + nbytes])
              for offset, nbytes in places[tensors:])
    return _Unpickler(io.BytesIO(memory[at:at + pickled].tobytes()), tensor,
                      buffers=arrays).load()


class End(NamedTuple):
    """What comes where an iterable dataset has no more batches."""

    batches: int  # that it had
    empty: Any  # one like them, of no rows; None: it had none


def load_batch_or_end(memory: np.ndarray, whole: Callable[[int], Any]) -> Any:
    """load_batch, of an iterable dataset."""
    _, _, pickled, _, others, _, batches, empty = memory[:64].view("<u8").tolist()
    if pickled or others:
        return load_batch(memory, whole)

    def end_of(size: int) -> Any:
        return whole(64 + size)[64:]

    return End(batches, load_batch(memory[64:], end_of) if empty else None)


def position_of(memory: np.ndarray) -> bytes:
    """The position of the iterators after a batch; b"": it came with none."""
    size, _, _, _, _, position = memory[:_HEAD_BYTES].view("<u8").tolist()
    return memory[size:size + position].tobytes()


class OneSample:
    """The collate_fn of ``batch_size=None``: batches are samples."""

    def __init__(self, convert: Callable[[Any], Any]):
        self._convert = convert

    def __call__(self, samples: List[Any]) -> Any:
        return self._convert(samples[0])


def without_rows(value: Any, rows: int) -> Any:
    """A batch like this one of so many rows, but of none: tensors, arrays, lists and
    texts by rows are empty. TypeError: it has other parts."""
    if isinstance(value, (str, bytes)) or value is None:
        return value
    if hasattr(value, "shape"):
        return value[:0] if len(value.shape) > 0 and len(value) == rows else value
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(without_rows(each, rows) for each in value))
    if isinstance(value, collections.abc.Mapping):
        return {key: without_rows(each, rows) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        if all(isinstance(each, (str, bytes, int, float)) for each in value):
            return value[:0]
        return type(value)(without_rows(each, rows) for each in value)
    raise TypeError(f"this rank has no rows in an epoch's last step, and {type(value)} "
                    "cannot be made empty: drop_last=True leaves that step out")
