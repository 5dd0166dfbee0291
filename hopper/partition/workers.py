"""The interface of workers, which build the servers' parts, and the worker in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from hopper.graph.directory import GraphDirectory
from hopper.partition.relabel import Relabelling, open_relabelling
from hopper.phases import Progress

T = TypeVar("T")


@dataclass(frozen=True)
class Construction:
    """The input of every part of a partitioned directory.

    The shared files are written, so a process that can read these folders can build any part.

    Attributes
    ----------
    graph: the graph that is divided.
    work: the directory that is being written.
    offsets: by node type [servers + 1] int64, bounds of the global ids of each server's nodes.
    """

    graph: GraphDirectory
    work: Path
    offsets: dict[str, NDArray[np.int64]]

    @property
    def servers(self) -> int:
        """Number of servers."""
        return next(iter(self.offsets.values())).size - 1

    @cached_property
    def maps(self) -> dict[str, Relabelling]:
        """The maps of ids of every node type."""
        return {
            name: open_relabelling(self.work, name, offsets)
            for name, offsets in self.offsets.items()
        }

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process opens the maps itself.
        return Construction, (self.graph, self.work, self.offsets)


class Workers(Protocol):
    """Builds parts that do not depend on each other."""

    def run(
        self,
        build: Callable[..., T],
        construction: Construction,
        progress: Progress,
        parts: Sequence[Any],
    ) -> list[T]:
        """Call ``build(construction, progress, *part)`` for every part; return results in order.

        Raises
        ------
        RequestError: a part failed in another process. In this process, its own error is raised.
        """
        ...


class ThisProcess:
    """Builds one part after another."""

    def run(
        self,
        build: Callable[..., T],
        construction: Construction,
        progress: Progress,
        parts: Sequence[Any],
    ) -> list[T]:
        """Build the parts in this process."""
        return [build(construction, progress, *part) for part in parts]
