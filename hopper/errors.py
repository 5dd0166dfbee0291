"""Every error that Hopper raises on purpose.

HopperError
├── ConfigError        a configuration key is unknown, missing or out of range
├── GraphError         a graph or partitioned directory is unusable (file and field named)
├── RequestError       a request that cannot be carried out as asked (too little memory, more
│                      servers than nodes, an engine that is not built)
├── StorageError       this machine's disk cannot hold what it has to
├── ExactnessError     a model or sampler that would break "one gradient"
└── ClusterError       something between processes went wrong
    ├── DeadlineExceeded   a wait ended by its deadline (who, what, limit)
    │   └── RankSilent     the wait was for another rank
    ├── RankLost           a rank ended or cannot be reached
    ├── RankFailed         a rank ended by an error of its own
    ├── RunEnded           the run was told to end by a signal
    └── ServerLost         a feature server ended or cannot be reached
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final

_OF_THE_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)


class HopperError(Exception):
    """Base of all errors raised on purpose; its text is meant for the user."""


class ConfigError(HopperError):
    """A configuration key is unknown, missing or out of range; names key, expected and given.

    Attributes
    ----------
    problems: where several keys are at fault, a line for each; else the message.
    """

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems) or (message,)


class GraphError(HopperError):
    """A graph or partitioned directory is unusable; names the file and the field."""


class RequestError(HopperError):
    """What was asked for cannot be done: too little memory, an engine that is not built, ..."""


class StorageError(HopperError):
    """This machine's disk cannot hold what it has to; names the key, the folder and the size."""


class ExactnessError(HopperError):
    """A model or sampler would make engines compute different gradients."""


class ClusterError(HopperError):
    """Something between processes went wrong."""


class DeadlineExceeded(ClusterError):
    """A wait was ended by its deadline."""

    def __init__(self, who: str, operation: str, limit_seconds: float) -> None:
        super().__init__(f"{who}: {operation} did not finish within {limit_seconds:g} s")
        self.who = who
        self.operation = operation
        self.limit_seconds = limit_seconds


class RankSilent(DeadlineExceeded):
    """Another rank did not come within the deadline: it hangs, or waits for something itself."""


class RankLost(ClusterError):
    """A rank ended or cannot be reached."""


class RankFailed(ClusterError):
    """A rank ended by an error of its own.

    Attributes
    ----------
    kind: the name of its error's class.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def is_of_the_request(self) -> bool:
        """Whether what was asked for is wrong, so that it would fail again."""
        own = (ConfigError, GraphError, RequestError, ExactnessError)
        return self.kind in {each.__name__ for each in own}


class RunEnded(ClusterError):
    """A run was told to end by a signal; its ranks and servers were ended."""


class ServerLost(ClusterError):
    """A feature server ended or cannot be reached."""


def explain_os_error(error: OSError, default: str) -> str | None:
    """Say in a line which file the system refused, and why; None for what is not about files.

    Parameters
    ----------
    default: names the file where the system does not, as when a disk is full.
    """
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return f"{default}: {error.strerror}" if error.errno in _OF_THE_DISK else None
