"""Typed errors: everything that a driver may raise."""

from __future__ import annotations

import errno
import os


class DriverError(Exception):
    """An outside system did not do what we asked. `str()` is one sentence for the operator.

    `subject` is what it is about (a node, a job, a host), `remedy` the next step for a person.
    """

    retry = True  # whether the same call may succeed later without anybody's help

    def __init__(self, subject: str, problem: str, remedy: str = "") -> None:
        self.subject, self.problem, self.remedy = subject, problem, remedy
        super().__init__(f"{subject}: {problem}" + (f"; {remedy}" if remedy else ""))


class NotFoundError(DriverError):
    """The subject does not exist (any more)."""

    retry = False


class AlreadyThereError(DriverError):
    """The subject exists and is not what we would have made."""

    retry = False


class BusyError(DriverError):
    """The subject is in a state, or in somebody's use, that forbids the call now."""


class UnreachableError(DriverError):
    """The outside system did not answer in time; whether it acted is unknown."""


class NoCapacityError(DriverError):
    """There is no room for what was asked."""


class RefusedError(DriverError):
    """The outside system understood and said no: permission, or not supported."""

    retry = False


class UnreadableError(DriverError):
    """A fact that we need could not be read: it is unknown, which is never the same as "no"."""


class BadOutputError(DriverError):
    """The outside system answered something that we cannot read; nothing was changed by us."""


class DamagedError(BadOutputError):
    """What was kept is not as it was when it was kept, or not all of it is there any more."""

    retry = False


def unreadable(subject: str, error: OSError, path: object = None) -> UnreadableError:
    """Make the error of a file that the system did not let us use: its path and a next step."""
    where = path or error.filename or "a file"
    why = error.strerror or type(error).__name__
    return UnreadableError(subject, f"cannot use {where}: {why}", _remedy(error.errno))


def _remedy(number: int | None) -> str:
    if number in (errno.EACCES, errno.EPERM):
        return f"let uid {os.geteuid()}, as which this runs, into it, or run this as root"
    if number in (errno.ESTALE, errno.EIO, errno.ENOTCONN, errno.ETIMEDOUT):
        return "see to the file system there, and mount it anew"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "make room there"
    return "see what lies there"
