"""Values of a spec, from those that Python programs have."""

from __future__ import annotations

import os
import re
from typing import Any, Dict, Mapping, Optional, Sequence, Union

import numpy as np

from penstock.errors import InvalidArgument

Path = Union[str, "os.PathLike[str]"]
# A path, glob or brace pattern; several; or {"list": a file with one path a line}.
Files = Union[Path, Sequence[Path], Mapping[str, Path]]
Size = Union[int, Sequence[int]]
PerChannel = Union[float, Sequence[float]]
# [low, high], or a number: how far from the middle.
Interval = Union[float, Sequence[float]]
Fill = Union[int, Sequence[int]]
# One feature, or several: with the same random numbers.
Names = Union[str, Sequence[str]]


def given(**values: Any) -> Dict[str, Any]:
    """The values that are not None, as plain JSON types."""
    return {key: plain(value) for key, value in values.items()
            if value is not None}


def plain(value: Any) -> Any:
    """The value as plain JSON types."""
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    if isinstance(value, (os.PathLike, bytes)):
        return os.fsdecode(value)
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if hasattr(value, "tolist"):  # NumPy's arrays and scalars
        return value.tolist()
    return [plain(each) for each in value]


def dtype_name(dtype: Any) -> str:
    """The name ("float32") of a dtype of NumPy, PyTorch or TensorFlow; text as is."""
    if isinstance(dtype, str):
        return dtype
    if type(dtype).__module__ == "torch":
        return str(dtype).rpartition(".")[2]
    if type(dtype).__module__.startswith("tensorflow."):
        return str(dtype.name)
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        raise TypeError(f"wanted a dtype, got {dtype!r}") from None


def optional_dtype(dtype: Any) -> Optional[str]:
    """As ``dtype_name``; None stays."""
    return None if dtype is None else dtype_name(dtype)


def features_of(features: Mapping[str, Any]) -> Dict[str, Dict[str, Any]]:
    """Converts {name: TensorSpec(shape, dtype)} to the spec's {name: {"dtype",
    "shape", ...}}, which is accepted too."""
    if not isinstance(features, Mapping):
        raise TypeError("features: wanted a mapping of names, such as {'x': "
                        f"penstock.TensorSpec((2,), 'float32')}}, got {features!r}")
    plain = {}
    for name, spec in features.items():
        if not isinstance(name, str):
            raise TypeError(f"features: wanted names, got {name!r}")
        if not isinstance(spec, Mapping):
            try:
                shape, dtype = spec
            except (TypeError, ValueError):
                raise TypeError(f"feature {name!r}: wanted a penstock.TensorSpec or "
                                f"{{'dtype': ..., 'shape': [...]}}, got {spec!r}"
                                ) from None
            spec = {"dtype": dtype, "shape": shape}
        plain[name] = dict(spec)
        if "dtype" in spec:
            plain[name]["dtype"] = dtype_name(spec["dtype"])
        if "shape" in spec:
            plain[name]["shape"] = [int(n) for n in spec["shape"]]
    return plain


def absolute_files(files: Files) -> Any:
    """A path, several, or {"list": path}."""
    if isinstance(files, Mapping):
        return {key: absolute(each) for key, each in files.items()}
    if isinstance(files, (str, bytes, os.PathLike)):
        return absolute(files)
    paths = [absolute(each) for each in files]
    return paths[0] if len(paths) == 1 else paths


def absolute(path: Path) -> str:
    """The path from the root, as text; an address stays as it is. InvalidArgument: it
    is empty, or not UTF-8."""
    text = os.fsdecode(path)
    if not text:
        raise InvalidArgument("path: wanted a path, got an empty text")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(
            f"path {text!r}: a spec is UTF-8, and this name is not: rename it, or "
            "use a link of another name") from None
    if re.match(r"[A-Za-z0-9+.-]+://|pipe:", text):
        return text  # the broker says why it does not read it
    return os.path.abspath(text)
