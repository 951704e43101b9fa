"""Dataset.filter(function): `penstock filter` asks the function of each record once, and
the answers are kept in the cache folder, for as long as data and function are the
same."""

from __future__ import annotations

import fcntl
import hashlib
import inspect
import io
import json
import os
import subprocess
import sys
import tempfile
import warnings
from typing import Any, Callable, Dict

from penstock import errors

_COMMAND = os.path.join(os.path.dirname(__file__), "bin", "penstock")

# The module that the broker's processes load.
_MODULE = '''\
import os
import pickle
import sys

SETTING = {setting!r}
CODE = {code!r}

sys.path += [folder for folder in SETTING["path"] if folder not in sys.path]
os.chdir(SETTING["folder"])
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "function.pickle"),
          "rb") as file:
    _function = pickle.load(file)


def keep(row):
    return _function(row)
'''


def kept_records(spec: Dict[str, Any], function: Callable[..., Any]) -> str:
    """The file of the records of a dataset that a function keeps.

    Raises:
      TypeError: the function cannot be pickled.
      InvalidArgument, DataLoss: what `penstock filter` says; the sample is named.
    """
    pickled = _pickle(function)
    code = _code(function, pickled)
    cache = _cache_folder()
    folder = os.path.join(cache, "filters", code[:32])
    steps = spec.get("map", [])
    judged = {"source": spec["source"], "select": spec.get("select", []), "map": steps}
    name = hashlib.sha256(json.dumps(judged, sort_keys=True).encode()).hexdigest()[:32]
    out = os.path.join(folder, name + ".records")
    try:
        # No code is run from a folder that others can write.
        for each in (cache, os.path.dirname(folder), folder):
            os.makedirs(each, mode=0o700, exist_ok=True)
        lock = open(os.path.join(folder, name + ".lock"), "w")
    except OSError as error:
        raise errors.FailedPrecondition(
            f"{folder}: {error.strerror}: the answers of a filter are kept there; "
            "PENSTOCK_CACHE_DIR names another folder") from None
    with lock:
        # One of several ranks asks, and the others wait for its answers.
        fcntl.flock(lock, fcntl.LOCK_EX)
        _put(os.path.join(folder, "function.pickle"), pickled)
        _put(os.path.join(folder, "predicate.py"), _MODULE.format(
            setting={"path": [os.path.abspath(each) for each in sys.path],
                     "folder": os.getcwd()}, code=code).encode())
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".yaml") as file:
            json.dump({"batch": {"size": 1}, **spec}, file, ensure_ascii=False)
            file.flush()
            _ask(file.name, folder, out, len(steps))
    return out


def _ask(spec: str, folder: str, out: str, steps: int) -> None:
    variables = dict(os.environ)
    variables["PENSTOCK_PYTHON_PATH"] = ":".join(
        each for each in (folder, variables.get("PENSTOCK_PYTHON_PATH")) if each)
    if sys.executable:
        variables.setdefault("PENSTOCK_PYTHON", sys.executable)
    done = subprocess.run(
        [_COMMAND, "filter", spec, "predicate:keep", "--out", out, "--steps", str(steps),
         "--json"], env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        raise errors.Internal(f"`penstock filter` ended with {done.returncode}") from None
    if "error" in answer:
        # The spec is not one that anybody has seen.
        raise errors.error_of(-answer["code"], answer["error"].replace(spec, "spec"))
    broken = answer.get("broken") or {}
    if broken.get("count"):
        warnings.warn(f"filter: {broken['count']} records could not be read or judged and "
                      f"are left out, the first of them: {'; '.join(broken['first'])}",
                      stacklevel=4)


def _cache_folder() -> str:
    given = os.environ.get("PENSTOCK_CACHE_DIR")
    if given:
        return os.path.abspath(given)
    return os.path.join(os.environ.get("XDG_CACHE_HOME")
                        or os.path.expanduser("~/.cache"), "penstock")


def _pickle(function: Callable[..., Any]) -> bytes:
    import cloudpickle

    if "__mp_main__" in sys.modules:  # the script's name in what it has spawned
        cloudpickle.register_pickle_by_value(sys.modules["__mp_main__"])
    file = io.BytesIO()
    try:
        cloudpickle.CloudPickler(file, protocol=5).dump(function)
    except Exception as error:
        raise TypeError(f"{function!r} cannot be pickled for the processes that judge the "
                        f"records: {error}") from error
    return file.getvalue()


def _code(function: Callable[..., Any], pickled: bytes) -> str:
    """A digest of what the function does: of its pickle, which has the code of what a
    script or a notebook defines, and of its module, whose name alone is pickled."""
    digest = hashlib.sha256(pickled)
    inner = inspect.unwrap(getattr(function, "func", function))  # of a partial
    module = sys.modules.get(getattr(inner, "__module__", None)
                             or type(inner).__module__)
    path = getattr(module, "__file__", None)
    if path and getattr(module, "__name__", "") != "__main__":
        try:
            with open(path, "rb") as file:
                digest.update(file.read())
        except OSError:
            pass
    return digest.hexdigest()


def _put(path: str, content: bytes) -> None:
    """The file has this content, or it is written, whole."""
    try:
        with open(path, "rb") as there:
            if there.read() == content:
                return
    except FileNotFoundError:
        pass
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(path), delete=False) as file:
        file.write(content)
    os.replace(file.name, path)
