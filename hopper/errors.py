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
    ├── RankLost           a rank ended or cannot be reached
    └── ServerLost         a feature server ended or cannot be reached
"""

from __future__ import annotations


class HopperError(Exception):
    """Base of all errors raised on purpose; its text is meant for the user."""


class ConfigError(HopperError):
    """A configuration key is unknown, missing or out of range; names key, expected and given."""


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


class RankLost(ClusterError):
    """A rank ended or cannot be reached."""


class ServerLost(ClusterError):
    """A feature server ended or cannot be reached."""
