"""Arguments of public functions, checked by their annotations: one of another type
is a TypeError that names it and says what is wanted."""

from __future__ import annotations

import collections.abc
import functools
import inspect
import numbers
import os
import typing
from typing import Any, Callable, Dict, Mapping, TypeVar, Union

Function = TypeVar("Function", bound=Callable[..., Any])
Class = TypeVar("Class", bound=type)

_BY_NAME: Dict[Any, str] = {
    str: "a text", int: "a whole number", float: "a number", bool: "True or False",
    type(None): "None", collections.abc.Mapping: "a mapping", os.PathLike: "a path",
    collections.abc.Callable: "a function"}


def checked(function: Function) -> Function:
    """The function, which checks its arguments after what it checks itself, since
    that knows better what to write instead."""
    signature = inspect.signature(function)

    @functools.lru_cache(maxsize=1)
    def wanted() -> Mapping[str, Any]:
        # By now the classes that annotations name exist.
        return typing.get_type_hints(function)

    def check(*arguments: Any, **named: Any) -> None:
        for name, value in signature.bind(*arguments, **named).arguments.items():
            kind = signature.parameters[name].kind
            hint = wanted().get(name, Any)
            each = (value if kind is inspect.Parameter.VAR_POSITIONAL else
                    value.values() if kind is inspect.Parameter.VAR_KEYWORD else
                    [value])
            for one in each:
                if not fits(one, hint):
                    raise TypeError(f"{function.__name__}: {name}: wanted "
                                    f"{text_of(hint)}, got {one!r}")

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        try:
            result = function(*arguments, **named)
        except Exception as error:
            name, _, rest = str(error).partition(": ")
            if name in signature.parameters and rest.startswith("wanted"):
                raise
            check(*arguments, **named)
            raise
        check(*arguments, **named)
        return result

    return typing.cast(Function, call)


def checked_class(cls: Class) -> Class:
    """The class, whose public methods check their arguments."""
    for name, value in list(vars(cls).items()):
        if name.startswith("_"):
            continue
        if isinstance(value, classmethod):
            setattr(cls, name, classmethod(checked(value.__func__)))
        elif inspect.isfunction(value):
            setattr(cls, name, checked(value))
    return cls


def check_module(members: Dict[str, Any]) -> None:
    """Its public functions check their arguments."""
    for name, value in list(members.items()):
        if inspect.isfunction(value) and not name.startswith("_") and (
                value.__module__ == members["__name__"]):
            members[name] = checked(value)


def fits(value: Any, hint: Any) -> bool:
    """Whether the value is what the annotation says; NumPy's numbers are numbers, and
    bytes are a path."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or isinstance(hint, TypeVar):
        return True
    if origin is Union:
        return any(fits(value, each) for each in inner)
    if hint is bool:
        return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")
    if hint in (int, float):
        kind = numbers.Integral if hint is int else numbers.Real
        return isinstance(value, kind) and not isinstance(value, bool)
    if origin is collections.abc.Sequence:
        if isinstance(value, (str, bytes, Mapping, collections.abc.Set)) or not (
                hasattr(value, "__iter__") and hasattr(value, "__len__")):
            return False
        return hasattr(value, "dtype") or all(fits(each, inner[0]) for each in value)
    if origin is collections.abc.Mapping:
        return isinstance(value, Mapping) and all(
            fits(each, inner[1]) for each in value.values())
    if (origin or hint) is os.PathLike:
        return isinstance(value, (os.PathLike, bytes))
    return isinstance(value, origin or hint)


def text_of(hint: Any) -> str:
    """What an annotation wants, in words."""
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin is Union:
        words = list(dict.fromkeys(
            text_of(each) for each in inner
            if not (each is str and any(typing.get_origin(other) is os.PathLike
                                        for other in inner))))
        return ", ".join(words[:-1]) + " or " + words[-1] if len(words) > 1 else words[0]
    if origin is collections.abc.Sequence:
        return f"several of {text_of(inner[0])}"
    if origin is collections.abc.Mapping and inner[1] is not Any:
        return f"a mapping of names to {text_of(inner[1])}"
    return _BY_NAME.get(origin or hint, getattr(hint, "__name__", str(hint)))
