"""Exceptions. The text says what was wanted, what was found and what to do about it.
All are ``penstock.Error``, and Python's own exception of the same meaning too."""

from __future__ import annotations


class Error(RuntimeError):
    """Any error of Penstock. ``code`` is the gRPC status number."""

    code = 2


class Cancelled(Error):
    """A wait was cancelled."""

    code = 1


class InvalidArgument(Error, ValueError):
    """A wrong spec, option or argument."""

    code = 3


class DeadlineExceeded(Error, TimeoutError):
    """``timeout_s`` or ``wait_s`` passed, or storage did not answer in time."""

    code = 4


class NotFound(Error, LookupError):
    """No such socket, dataset or file."""

    code = 5


class AlreadyExists(Error):
    """This rank is already attached."""

    code = 6


class PermissionDenied(Error, PermissionError):
    """This user may not use a file or a socket."""

    code = 7


class ResourceExhausted(Error):
    """A memory limit; or the rank holds all batches that it may hold at once."""

    code = 8


class FailedPrecondition(Error):
    """Wrong state: ranks disagree, the reader is closed or belongs to the parent
    process, the broker is of another release."""

    code = 9


class Aborted(Error):
    """The broker detached this rank from its job: evicted, stopped, or left behind by
    a new incarnation."""

    code = 10


class Internal(Error):
    """A bug in Penstock, or no memory."""

    code = 13


class Unavailable(Error, ConnectionError):
    """The broker is gone."""

    code = 14


class DataLoss(Error):
    """A record is corrupt and the spec says ``on_error: fail``; or rows of a stream,
    or the broker's journal, are lost."""

    code = 15


_BY_CODE = {kind.code: kind for kind in Error.__subclasses__()}


def error_of(code: int, text: str) -> Error:
    """The exception for a negative result of the C library."""
    return _BY_CODE.get(-code, Error)(text)
