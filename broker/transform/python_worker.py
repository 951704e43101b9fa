"""Calls one function of a dataset's `map`, row by row, for penstockd.

A process of its own, so that whatever the function does ends this one and
nobody else. Its argument: JSON, see PythonFunction. Its descriptors:

  3  packets of little-endian uint64: the number of the call, then what is asked.
     The answer: that number, one byte, 0 done, 1 failed, then text. Number 0 is
     the import, which is not asked for.
  4  the memory that rows lie in, inputs and outputs
  5  this text, which penstockd has in it and `python -c` reads
"""

import sys

sys.path[:] = [folder for folder in sys.path if folder]  # not where it was run

import ctypes
import importlib
import importlib.util
import inspect
import json
import mmap
import os
import select
import signal
import socket
import struct
import traceback

LINK, MEMORY = 3, 4
TEXT_MAX = 4000
PR_SET_PDEATHSIG = 1


def end_with_broker():
    """Whatever the function does then: the kernel sees to it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    died_before = select.poll()
    died_before.register(LINK, 0)  # POLLHUP is told all the same
    if died_before.poll(0):
        os._exit(1)
    for descriptor in (LINK, MEMORY):
        os.set_inheritable(descriptor, False)
    try:  # where memory runs out, it goes before the broker does
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("1000")
    except OSError:
        pass


def said(error):
    """What Python prints of an exception, without this file's lines."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == "<string>":
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    text = text.rstrip()
    if len(text) > TEXT_MAX:
        text = text[:TEXT_MAX // 4] + "\n  ...\n" + text[-3 * TEXT_MAX // 4:]
    return text


def answer(call, error=None):
    text = b"" if error is None else said(error).encode("utf-8", "replace")
    return struct.pack("<QB", call, error is not None) + text


def is_in(file, folders):
    return file is not None and any(
        os.path.realpath(file).startswith(os.path.join(os.path.realpath(folder),
                                                       ""))
        for folder in folders)


def check_trusted(file, writable_by):
    status = os.stat(file)
    if status.st_mode & writable_by or status.st_uid not in (0, os.geteuid()):
        raise ImportError(f"others can write {file} (mode "
                          f"{status.st_mode & 0o7777:04o}, user "
                          f"{status.st_uid})")


def find_function(name, folders, writable_by):
    """The function "package.module:function"; only of modules in the folders."""
    module_name, _, attribute = name.partition(":")
    where = ":".join(folders)
    package = module_name.partition(".")[0]
    spec = importlib.util.find_spec(package)
    if spec is None:
        raise ImportError(f"no module '{package}' in python_path ({where})")
    places = [spec.origin] if spec.has_location else list(
        spec.submodule_search_locations or [])
    if not places or not all(is_in(place, folders) for place in places):
        raise ImportError(f"'{package}' is not in python_path ({where}) but "
                          f"{places[0] if places else 'built in'}")
    if spec.has_location:
        check_trusted(spec.origin, writable_by)
    function = importlib.import_module(module_name)
    for part in attribute.split("."):
        function = getattr(function, part)
    home = sys.modules.get(getattr(function, "__module__", None))
    if not callable(function) or not is_in(getattr(home, "__file__", None),
                                           folders):
        raise ImportError(f"'{name}' is not a function of a module in "
                          f"python_path ({where})")
    check_trusted(home.__file__, writable_by)
    return function


def takes_rng(function):
    try:
        return "rng" in inspect.signature(function).parameters
    except ValueError:  # a compiled one that does not say
        return False


def dtype_of(numpy, name):
    if name != "bfloat16":
        return numpy.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError("NumPy has no bfloat16 of its own: install "
                          "ml_dtypes, or give another dtype") from None
    return numpy.dtype(ml_dtypes.bfloat16)


class Rows:
    """The memory, and the arrays of the row that is in it."""

    def __init__(self, numpy, inputs, outputs):
        self.numpy = numpy
        self.inputs = [(f["name"], None if f["encoded"] else f["shape"],
                        dtype_of(numpy, f["dtype"])) for f in inputs]
        self.outputs = [(f["name"], f["shape"], dtype_of(numpy, f["dtype"]))
                        for f in outputs]
        self.memory = None
        self.places = None
        self.row = {}
        self.results = {}

    def array(self, offset, size, shape, dtype):
        flat = self.numpy.frombuffer(self.memory, dtype,
                                     size // dtype.itemsize, offset)
        return flat if shape is None else flat.reshape(shape)

    def look(self, memory_bytes, places):
        """places: offset and bytes of each input, offset of each output."""
        if self.memory is None or len(self.memory) != memory_bytes:
            self.memory = mmap.mmap(MEMORY, memory_bytes)
        elif places == self.places:
            return
        self.places = places
        places = iter(places)
        self.row = {name: self.array(next(places), next(places), shape, dtype)
                    for name, shape, dtype in self.inputs}
        self.results = {}
        for name, shape, dtype in self.outputs:
            size = dtype.itemsize
            for n in shape:
                size *= n
            self.results[name] = self.array(next(places), size, shape, dtype)

    def views(self):
        """New ones for each row: a function can change the shape of an array."""
        return {name: array.view() for name, array in self.row.items()}

    def take(self, result):
        if not isinstance(result, dict) and not hasattr(result, "keys"):
            raise TypeError(f"it returned {type(result).__name__}; wanted a "
                            f"mapping of {', '.join(self.results)}")
        if set(result.keys()) != set(self.results):
            raise KeyError(f"it returned {', '.join(map(str, result))}; wanted "
                           f"{', '.join(self.results)}: its input's, unless "
                           "`features` of the step name others")
        for name, place in self.results.items():
            value = self.numpy.asarray(result[name])
            if value.shape != place.shape:
                raise ValueError(f"feature '{name}': it returned shape "
                                 f"{list(value.shape)}; wanted "
                                 f"{list(place.shape)}")
            self.copy(name, value, place)

    def copy(self, name, value, place):
        if value.dtype.kind in "iu" and place.dtype.kind in "iu":
            limits = self.numpy.iinfo(place.dtype)
            if value.size and value.dtype != place.dtype and not (
                    limits.min <= int(value.min())
                    and int(value.max()) <= limits.max):
                raise ValueError(f"feature '{name}': it returned values from "
                                 f"{value.min()} to {value.max()}, which do not "
                                 f"fit into {place.dtype}")
            self.numpy.copyto(place, value, casting="unsafe")
            return
        try:
            with self.numpy.errstate(over="ignore"):
                self.numpy.copyto(place, value, casting="same_kind")
        except TypeError as error:
            raise TypeError(f"feature '{name}': {error}") from None
        if value.dtype != place.dtype and value.dtype.kind == "f":
            infinite = self.numpy.isinf(place) & ~self.numpy.isinf(value)
            if infinite.any():
                raise ValueError(f"feature '{name}': it returned "
                                 f"{value[infinite].flat[0]}, which does not fit "
                                 f"into {place.dtype}: it would become infinite")


def random_generator(numpy, seed, epoch, sample, step):
    """Philox4x64-10 with key (seed, step) at counter (0, sample, epoch, 0): the
    same for a row wherever and whenever it is made."""
    return numpy.random.Generator(numpy.random.Philox(
        key=[seed, step], counter=[0, sample, epoch, 0]))


def main():
    os.dup2(2, 1)  # what functions print is the broker's log
    end_with_broker()
    link = socket.socket(fileno=LINK)
    try:
        options = json.loads(sys.argv[1])
        sys.path[:0] = options["python_path"]
        import numpy
        function = find_function(options["function"], options["python_path"],
                                 options["writable_by"])
        rows = Rows(numpy, options["inputs"], options["outputs"])
        draws = takes_rng(function)
    except BaseException as error:
        link.send(answer(0, error))
        return
    link.send(answer(0))
    while message := link.recv(1 << 16):
        call, memory_bytes, seed, epoch, sample, step, *places = struct.unpack(
            f"<{len(message) // 8}Q", message)
        try:
            rows.look(memory_bytes, places)
            if draws:
                result = function(rows.views(), rng=random_generator(
                    numpy, seed, epoch, sample, step))
            else:
                result = function(rows.views())
            rows.take(result)
            reply = answer(call)
        except BaseException as error:
            reply = answer(call, error)
        link.send(reply)


main()
