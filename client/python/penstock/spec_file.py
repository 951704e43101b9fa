"""Reads spec files as the broker does: the subset of YAML that JSON has too."""

from __future__ import annotations

import re
from typing import Any, Dict, List

import yaml

from penstock.errors import InvalidArgument

_NULLS = ("", "~", "null", "Null", "NULL")
_BOOLEANS = {"true": True, "false": False}
_WHOLE = re.compile(r"-?(0|[1-9][0-9]*)")
_FRACTION = re.compile(r"-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")


def read(path: str) -> Dict[str, Any]:
    """The mapping in the file at ``path``; the broker checks its keys.
    InvalidArgument (FILE:LINE:COLUMN): no mapping, or something that a spec cannot
    have: aliases, tags, a key twice."""
    with open(path, encoding="utf-8-sig") as file:
        try:
            spec = _Reader(path, yaml.parse(file, Loader=yaml.SafeLoader)).document()
        except yaml.MarkedYAMLError as error:
            raise _error(path, error.problem_mark, error.problem) from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"{path}: not YAML: {error}") from None
    if not isinstance(spec, dict):
        raise InvalidArgument(f"{path}: wanted the keys of a spec (`dataset:`, "
                              "`source:`, ...), found "
                              f"{'nothing' if spec is None else repr(spec)[:60]}")
    return spec


def _error(path: str, mark: Any, text: Any) -> InvalidArgument:
    return InvalidArgument(f"{path}:{mark.line + 1}:{mark.column + 1}: {text}")


class _Reader:
    def __init__(self, path: str, events: Any):
        self._path = path
        self._events = events

    def document(self) -> Any:
        root = None
        documents = 0
        for event in self._events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    raise self._refused(event, "a second document begins here")
                root = self._value(next(self._events))
        return root

    def _refused(self, event: Any, why: str) -> InvalidArgument:
        return _error(self._path, event.start_mark, why)

    def _value(self, event: Any) -> Any:
        if isinstance(event, yaml.AliasEvent) or event.anchor is not None:
            raise self._refused(event, "anchors (&name) are not allowed; write it out")
        if event.tag not in (None, "!"):
            raise self._refused(event, "tags (!type) are not allowed")
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        if isinstance(event, yaml.SequenceStartEvent):
            items: List[Any] = []
            while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
                items.append(self._value(event))
            return items
        return self._mapping()

    def _mapping(self) -> Dict[str, Any]:
        members: Dict[str, Any] = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                raise self._refused(event, "a key must be a name (is a bracket left open?)")
            if event.value in members:
                raise self._refused(event, f"'{event.value}' is given twice")
            members[event.value] = self._value(next(self._events))
        return members


def _scalar(event: yaml.ScalarEvent) -> Any:
    text = event.value
    if event.style is not None:  # quoted, or a block
        return text
    if text in _NULLS:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _FRACTION.fullmatch(text):
        return float(text)
    return text
