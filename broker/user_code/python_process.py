"""A process in which penstockd runs a user's Python code.

A process of its own, so that whatever the code does ends this one and nobody
else. This text comes first, then that of what it is to do (`python_function.py`,
`python_dataset.py`), which calls `serve`. Its argument: JSON. Its descriptors:

  3  packets of little-endian uint64: the number of the call, then what is asked.
     The answers: that number, one byte (DONE, FAILED or MORE), then bytes; MORE:
     another answer follows. Number 0 is the import, which is not asked for.
  4  the memory that rows lie in
  5  this text, which penstockd has in it and `python -c` reads
"""

import sys

sys.path[:] = [folder for folder in sys.path if folder]  # not where it was run

import ctypes
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import struct
import traceback

LINK, MEMORY = 3, 4
TEXT_MAX = 4000
DONE, FAILED, MORE = range(3)
MESSAGE_MAX = 1 << 17
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


def answer(call, state, body=b""):
    return struct.pack("<QB", call, state) + body


def failure(call, error):
    return answer(call, FAILED, said(error).encode("utf-8", "replace"))


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
    """The function or class "package.module:name"; only of modules in the
    folders."""
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


def dtype_of(numpy, name):
    if name != "bfloat16":
        return numpy.dtype(name)
    try:
        import ml_dtypes
    except ImportError:
        raise ImportError("NumPy has no bfloat16 of its own: install "
                          "ml_dtypes, or give another dtype") from None
    return numpy.dtype(ml_dtypes.bfloat16)


def copy_into(numpy, name, value, place):
    """Copies an array; what does not fit into the other dtype is an error."""
    if value.dtype.kind in "iu" and place.dtype.kind in "iu":
        limits = numpy.iinfo(place.dtype)
        if value.size and value.dtype != place.dtype and not (
                limits.min <= int(value.min())
                and int(value.max()) <= limits.max):
            raise ValueError(f"feature '{name}': it has values from "
                             f"{value.min()} to {value.max()}, which do not "
                             f"fit into {place.dtype}")
        numpy.copyto(place, value, casting="unsafe")
        return
    try:
        with numpy.errstate(over="ignore"):
            numpy.copyto(place, value, casting="same_kind")
    except TypeError as error:
        raise TypeError(f"feature '{name}': {error}") from None
    if value.dtype != place.dtype and value.dtype.kind == "f":
        infinite = numpy.isinf(place) & ~numpy.isinf(value)
        if infinite.any():
            raise ValueError(f"feature '{name}': it has "
                             f"{value[infinite].flat[0]}, which does not fit "
                             f"into {place.dtype}: it would become infinite")


def serve(prepare):
    """prepare(options) -> (body of the answer to number 0, function of a call's
    number, numbers and the link, which sends what it answers)."""
    os.dup2(2, 1)  # what users' code prints is the broker's log
    end_with_broker()
    link = socket.socket(fileno=LINK)
    try:
        options = json.loads(sys.argv[1])
        sys.path[:0] = options["python_path"]
        body, run = prepare(options)
    except BaseException as error:
        link.send(failure(0, error))
        return
    link.send(answer(0, DONE, body))
    while message := link.recv(MESSAGE_MAX):
        call, *numbers = struct.unpack(f"<{len(message) // 8}Q", message)
        try:
            run(call, numbers, link)
        except BaseException as error:
            link.send(failure(call, error))
