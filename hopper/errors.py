"""Every error that Hopper raises on purpose.

HopperError
├── ConfigError        a configuration key is unknown, missing or out of range
├── GraphError         a graph or partitioned directory is unusable (file and field named)
├── RequestError       a request is impossible (too little memory, more servers than nodes, an
│                      engine that cannot train the model)
├── StorageError       this machine's disk lacks the room that is needed
├── NonFiniteError     a loss, a gradient or a parameter is not a finite number
├── ExactnessError     a model or sampler would make engines compute different gradients
└── ClusterError       something between processes went wrong
    ├── DeadlineExceeded   a wait passed its deadline (who, what, limit)
    │   └── RankSilent     the wait was for another rank
    ├── RankLost           a rank ended or cannot be reached
    ├── RankFailed         a rank ended with an error of its own
    ├── RunEnded           a signal told the run to end
    └── ServerLost         a feature server ended or cannot be reached
"""

from __future__ import annotations

import errno
import signal
from collections.abc import Sequence
from typing import Final

_PACKAGES: Final = {"cupy": "cupy-cuda13x", "dgl": "dgl==1.1.3 setuptools packaging"}
"""by library, what is installed for it if that has another name"""
_OF_THE_DISK: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG)


class HopperError(Exception):
    """Base of all errors that Hopper raises on purpose. Its text is meant for the user."""


class ConfigError(HopperError):
    """A configuration key is unknown, missing or out of range.

    The text names the key, what was expected and what was given.

    Attributes
    ----------
    problems: a line for each key at fault; the message if there is only one.
    """

    def __init__(self, message: str, problems: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.problems = tuple(problems) or (message,)


class GraphError(HopperError):
    """A graph or partitioned directory is unusable. The text names the file and the field."""


class RequestError(HopperError):
    """A request is impossible: too little memory, an engine that cannot train the model, ..."""


class StorageError(HopperError):
    """This machine's disk lacks room. The text names the key, the folder and the size."""


class NonFiniteError(HopperError):
    """A loss, a gradient or a parameter is not a finite number. The text says where and when."""


class ExactnessError(HopperError):
    """A model or sampler would make engines compute different gradients."""


class ClusterError(HopperError):
    """Something between processes went wrong."""


class DeadlineExceeded(ClusterError):
    """A wait passed its deadline.

    Attributes
    ----------
    who: the process that waited.
    operation: what it waited for.
    limit_seconds: the deadline.

    Parameters
    ----------
    advice: what to do, for the end of the text.
    """

    def __init__(self, who: str, operation: str, limit_seconds: float, advice: str = "") -> None:
        text = f"{who}: {operation} did not finish within {limit_seconds:g} s"
        super().__init__(f"{text}; {advice}" if advice else text)
        self.who = who
        self.operation = operation
        self.limit_seconds = limit_seconds


class RankSilent(DeadlineExceeded):
    """Another rank did not answer within the deadline. It hangs, or waits for something itself."""


class RankLost(ClusterError):
    """A rank ended or cannot be reached."""


class RankFailed(ClusterError):
    """A rank ended with an error of its own.

    Attributes
    ----------
    kind: the name of the error's class.
    """

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind

    @property
    def is_of_the_request(self) -> bool:
        """Return whether the request itself is wrong, so that another try would fail too."""
        kinds = (ConfigError, GraphError, RequestError, NonFiniteError, ExactnessError)
        return self.kind in {error.__name__ for error in kinds}


class RunEnded(ClusterError):
    """A signal told a run to end. Its ranks and servers have been ended.

    Attributes
    ----------
    code: the exit code of a command that ends therefore, 128 and the signal's number.
    """

    def __init__(self, number: signal.Signals) -> None:
        super().__init__(f"ended by {number.name}; ranks and servers were ended")
        self.code = 128 + number


class ServerLost(ClusterError):
    """A feature server ended or cannot be reached."""


def cannot_import(what: str, library: str, why: object = "not installed") -> str:
    """Say in a line that something needs a library that is not installed, and how to install it.

    Extras are not named: Hopper is on no index, so their names install nothing outside a checkout.
    """
    package = _PACKAGES.get(library, library)
    return f"{what} needs {library}, which cannot be imported ({why}); pip install {package}"


def explain_os_error(error: OSError, default: str) -> str | None:
    """Say in a line which file the system refused, and why; None if the error is not about files.

    Parameters
    ----------
    default: names the file if the system does not, as when a disk is full.
    """
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return f"{default}: {error.strerror}" if error.errno in _OF_THE_DISK else None
