"""A process in which penstockd runs a user's Python code.

A process of its own, so that whatever the code does ends this one and nobody
else. This text comes first, then that of what it is to do (`python_function.py`,
`python_dataset.py`), which calls `serve`. Its arguments: JSON of what is asked for,
and of what is allowed, which goes before. Its descriptors:

  3  packets of little-endian uint64: the number of the call, then what is asked.
     The answers: that number, one byte (DONE, FAILED, MORE or LAST), then bytes;
     MORE: another answer follows; LAST: done, another process is to follow. Number 0 is the import, which is not asked for.
  4  the memory that rows lie in
  5  this text, which penstockd has in it and `python -c` reads

Or a program forks a template of itself, with the dataset in its memory
(penstock/template.py): it runs this text with GIVEN, what it gives, LINK and TRUSTED,
the second argument.
"""

import sys

if "GIVEN" not in globals():
    GIVEN = None
    sys.path[:] = [folder for folder in sys.path if folder]  # not where it was run
    LINK, TRUSTED = 3, sys.argv[2]

import ctypes
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import struct
import time
import traceback

MEMORY = 4
TEXT_MAX = 4000
DONE, FAILED, MORE, LAST = range(4)
MESSAGE_MAX = 1 << 17
END_S = 0.5
PR_SET_PDEATHSIG = 1


def end_with_parent():
    """Whatever the user's code does then: the kernel sees to it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    died_before = select.poll()
    died_before.register(LINK, 0)  # POLLHUP is told all the same
    if died_before.poll(0):
        os._exit(1)


def keep_to_itself():
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
    own = said.__code__.co_filename
    while trace is not None and trace.tb_frame.f_code.co_filename == own:
        trace = trace.tb_next
    text = "".join(traceback.format_exception(type(error), error, trace))
    text = str(error) if isinstance(error, Told) else text.rstrip()
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
    check_trusted_status(file, os.stat(file), writable_by)


def check_trusted_status(file, status, writable_by):
    if status.st_mode & writable_by or status.st_uid not in (0, os.geteuid()):
        raise ImportError(f"others can write {file} (mode "
                          f"{status.st_mode & 0o7777:04o}, user "
                          f"{status.st_uid}): chmod go-w it")


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


def options_of(text):
    return {**json.loads(text), **json.loads(TRUSTED)}


def answer_calls(link, prepare, options):
    """prepare(options) -> (body of the answer to number 0, function of a call's
    number, numbers and the link, which sends what it answers)."""
    try:
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


def fork_on_request(link, prepare):
    """The loop of a template: a call has the child's argument as JSON, and its
    descriptors LINK and MEMORY; the answer has a pidfd. Without descriptors it has
    the number of a child that is to end; the answer is how it did (waitpid). Below
    0: nobody waits for that, and there is no answer."""
    global LINK, MEMORY
    ending = set()
    while True:
        message, more, _, _ = link.recvmsg(MESSAGE_MAX, socket.CMSG_SPACE(8))
        if not message:
            return
        call, = struct.unpack_from("<Q", message)
        if not more:
            number, status = json.loads(message[8:]), 0
            child = abs(number)
            try:
                os.killpg(child, signal.SIGKILL)
            except ProcessLookupError:
                pass
            ending.add(child)
            if number < 0:
                continue
            # It may take long to end, and others wait for this process.
            give_up_s = time.monotonic() + END_S
            while child in ending and time.monotonic() < give_up_s:
                for each in list(ending):
                    try:
                        found, how = os.waitpid(each, os.WNOHANG)
                    except ChildProcessError:
                        found, how = each, 0
                    if found:
                        ending.discard(each)
                        status = how if each == child else status
                if child in ending:
                    time.sleep(0.001)
            link.send(answer(call, DONE, struct.pack("<Q", status)))
            continue
        given = struct.unpack("2i", more[0][2])
        child = os.fork()
        if child == 0:
            try:
                link.close()
                LINK, MEMORY = given
                os.setpgid(0, 0)
                end_with_parent()
                keep_to_itself()
                answer_calls(socket.socket(fileno=LINK), prepare,
                             options_of(message[8:]))
            finally:
                os._exit(0)
        for descriptor in given:
            os.close(descriptor)
        pidfd = pidfd_open(child)
        link.sendmsg([answer(call, DONE, struct.pack("<Q", child))],
                     [(socket.SOL_SOCKET, socket.SCM_RIGHTS,
                       struct.pack("i", pidfd))])
        os.close(pidfd)


def pidfd_open(pid):
    """Some builds of Python have no os.pidfd_open."""
    if hasattr(os, "pidfd_open"):
        return os.pidfd_open(pid)
    import ctypes
    descriptor = ctypes.CDLL(None, use_errno=True).syscall(434, pid, 0)  # on all machines
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return descriptor


def in_child(work):
    """What work() returns, bytes, in a child that ends with it, and with all that it
    has started. Told: the text of what it raised, or how it ended."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setpgid(0, 0)
            try:
                told = b"0" + work()
            except BaseException as error:
                told = b"1" + said(error).encode("utf-8", "replace")
            with open(writable, "wb") as file:
                file.write(struct.pack("<Q", len(told)) + told)
        finally:
            os._exit(0)
    os.close(writable)
    # Its own children may keep the pipe open.
    pidfd = pidfd_open(child)
    ready = select.poll()
    ready.register(readable, select.POLLIN)
    ready.register(pidfd, select.POLLIN)
    told = b""
    while len(told) < 8 or len(told) < 8 + struct.unpack_from("<Q", told)[0]:
        if readable not in dict(ready.poll()):
            break
        more = os.read(readable, 1 << 20)
        if not more:
            break
        told += more
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.close(readable)
    os.close(pidfd)
    told = told[8:]
    if not told:
        how = f"signal {-status}" if status < 0 else f"status {status}"
        told = f"1its process ended with {how} at the first sample".encode()
    if told[:1] == b"1":
        raise Told(told[1:].decode("utf-8", "replace"))
    return told[1:]


class Told(Exception):
    """A text to be told as it is."""


def serve(prepare, template=None):
    """template(options) -> (body of the answer to number 0, whether children can be
    forked), where the argument asks for one."""
    if GIVEN is not None:
        with socket.socket(fileno=LINK) as link:
            return fork_on_request(link, prepare)
    os.dup2(2, 1)  # what users' code prints is the broker's log
    options = options_of(sys.argv[1])
    sys.path[:0] = options["python_path"]
    link = socket.socket(fileno=LINK)
    keep_to_itself()
    if not options.get("template"):
        end_with_parent()
        return answer_calls(link, prepare, options)
    # The thread that started it ends before it: it ends when its link does.
    try:
        body, forks = template(options)
    except BaseException as error:
        link.send(failure(0, error))
        return
    link.send(answer(0, DONE, body))
    if forks:
        fork_on_request(link, prepare)
