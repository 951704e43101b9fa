"""Datasets of other libraries: anything with ``__len__`` and ``__getitem__``.

The object is pickled into the folder of a private broker, whose processes load it
and make its samples, once for all ranks of the host. Large arrays stay in the file,
which all processes map: they are in memory once. No service takes such an object:
loading a pickle runs its code.
"""

from __future__ import annotations

import collections
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
from typing import (Any, Callable, Collection, Dict, List, NamedTuple, Optional,
                    Tuple)

import numpy as np

from penstock import _core, errors
from penstock.dataset import Dataset
from penstock.private_broker import environment
from penstock.spec_values import given

# Where buffers begin in the file: any dtype is aligned, and pages are whole.
_ALIGN = 4096
_HEAD = struct.Struct("<8sQQ")  # magic, place of the table, number of pieces
# Buffers that are worth a place of their own.
_BUFFER_BYTES_MIN = 4096


class Ranks(NamedTuple):
    """Ranks that no launcher's variables number."""

    rank: int
    world_size: int
    local_world_size: int
    launch: str  # a name, the same for all of them


def own_socket(ranks: Optional[Ranks] = None) -> str:
    """The socket of this program's own broker: PENSTOCK_SOCKET where a private one
    was started for it (``penstock run``, ``penstock.broker()``), else one that the
    ranks of this host start for themselves."""
    if sys.executable:  # it loads what this interpreter pickled
        os.environ.setdefault("PENSTOCK_PYTHON", sys.executable)
    if os.environ.get("PENSTOCK_SOCKET"):
        return os.environ["PENSTOCK_SOCKET"]
    with environment({} if ranks is None else {
            "PENSTOCK_RANK": str(ranks.rank),
            "PENSTOCK_WORLD_SIZE": str(ranks.world_size),
            "PENSTOCK_LOCAL_WORLD_SIZE": str(ranks.local_world_size),
            "MASTER_ADDR": ranks.launch, "MASTER_PORT": "0"}):
        return _core.own_broker()


def spec_of(name: str, socket: str, dataset: Any, *, sampler: Any = None,
            worker_init_fn: Optional[Callable[[int], None]] = None,
            pickled: bool = False, max_bytes: Optional[int] = None,
            processes: Optional[int] = None) -> Dataset:
    """A Dataset whose samples are those of an object.

    Args:
      name: the job's; all ranks pickle the same object under it, and the first file
        is taken.
      sampler: gives the order of each epoch, in which the dataset is read.
      worker_init_fn: called in each process with its number.
      pickled: samples go to the rank as pickles, whatever they hold.
      max_bytes: room for a text or a pickled sample.
      processes: how many make samples.

    Raises:
      TypeError: the object cannot be pickled.
      FailedPrecondition: the broker is no private one of this user.
    """
    path = _write(os.path.join(os.path.dirname(socket), "datasets"),
                  name,
                  {"dataset": dataset, "sampler": sampler,
                   "worker_init_fn": worker_init_fn, "pickled": pickled})
    # Other loaders of the same data take its state.
    return Dataset({"dataset": type_name(dataset), "source": {"python": given(
        object=path, max_bytes=max_bytes, processes=processes)}})


def type_name(dataset: Any) -> str:
    """The name of its class, as a name of a dataset."""
    return re.sub(r"[^A-Za-z0-9_.-]", "-", type(dataset).__name__)[:40]


def launch(ranks: Optional[Ranks] = None) -> str:
    """A name for what started this process: the same in all ranks of this host,
    and in a rank that is started again."""
    if ranks is not None:
        return ranks.launch
    return str(os.getpid() if _core.launch()[0] == "none" else os.getppid())


def _write(folder: str, name: str, value: Dict[str, Any]) -> str:
    """Pickles value into a file that appears whole; leaves one that is there."""
    path = os.path.join(folder, name + ".pickle")
    if os.path.exists(path):
        return path
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
    except OSError as error:
        raise errors.FailedPrecondition(
            f"{folder}: {error.strerror}: only a private broker of this user takes a "
            "dataset that is an object; unset PENSTOCK_SOCKET, or use `with "
            "penstock.broker():`") from None
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".") as file:
        try:
            _dump(value, file)
        except Exception as error:
            raise TypeError(
                f"{type(value['dataset']).__name__} cannot be pickled for the processes "
                f"that make its samples: {error}. What cannot be pickled (open files, "
                "connections, locks, generators) is opened in __getitem__, or by a "
                "factory: penstock.Dataset.python") from error
        file.flush()
        try:
            os.link(file.name, path)
        except FileExistsError:
            pass  # of another rank
    return path


def _dump(value: Dict[str, Any], file: Any) -> None:
    buffers: List[pickle.PickleBuffer] = []
    pickled = io.BytesIO()
    _pickler(pickled, buffers).dump(value)
    setting = json.dumps({"path": [os.path.abspath(each) for each in sys.path],
                          "folder": os.getcwd()}).encode()
    pieces = [setting, pickled.getbuffer(), *(each.raw() for each in buffers)]
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


# ---- what ranks get


def tree_of(structure: str, names: Collection[str]) -> Dict[str, Any]:
    """The structure of samples (``Reader.structure``), with namedtuples' classes
    found; of other features than its own (a ``map`` changed them) a dict of all."""
    tree: Dict[str, Any] = json.loads(structure) if structure else {}
    if not tree or not set(_features(tree)) <= set(names):
        return {"dict": [[name, {"array": name}] for name in names]}
    return tree


def _features(tree: Dict[str, Any]) -> List[str]:
    """The features of a tree; finds the classes of its namedtuples."""
    (kind, inner), = tree.items()
    if kind == "namedtuple":
        module, name = inner["class"]
        inner["class"] = _namedtuple(module, name, inner["fields"])
        inner = inner["list"]
    if kind in ("list", "namedtuple"):
        return [name for each in inner for name in _features(each)]
    if kind == "dict":
        return [name for _, each in inner for name in _features(each)]
    return [inner] if kind in ("array", "bytes") else list(inner)


def _namedtuple(module: str, name: str, fields: List[str]) -> Any:
    """The class, where this process has it; else one like it."""
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        if list(found._fields) == fields:
            return found
    except (ImportError, AttributeError):  # a class of a function, for one
        pass
    return collections.namedtuple(name.split(".")[-1], fields)


def rebuild(tree: Dict[str, Any], arrays: Callable[[str], Any],
            convert: Callable[[str], Any]) -> Any:
    """A batch nested as the samples are: lists, namedtuples, dicts, ``convert(name)``
    of an array feature, lists of str, bytes and objects. ``arrays(name)``: NumPy's."""
    (kind, inner), = tree.items()
    if kind == "list":
        return [rebuild(each, arrays, convert) for each in inner]
    if kind == "namedtuple":
        return inner["class"](*(rebuild(each, arrays, convert)
                                for each in inner["list"]))
    if kind == "dict":
        return {key: rebuild(each, arrays, convert) for key, each in inner}
    if kind in ("array", "bytes"):
        return convert(inner)
    rows = [bytes(row[:size]) for row, size in zip(*map(arrays, inner))]
    if kind == "raw":
        return rows
    if kind == "text":
        return [row.decode("utf-8", "surrogatepass") for row in rows]
    return [pickle.loads(row) for row in rows]
