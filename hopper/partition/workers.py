"""Who builds the servers' parts: this process, one after another, or others at once."""

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
    """What every part of a partitioned directory is built from: the files that all parts share are
    there, so whoever has the folders can build any part.

    Attributes
    ----------
    graph: what is divided.
    work: the directory that is being written.
    offsets: by node type, [servers + 1] int64: the global ids of each server's nodes.
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
        """Both maps of every node type."""
        return {
            name: open_relabelling(self.work, name, each) for name, each in self.offsets.items()
        }

    def __reduce__(self) -> tuple[Any, ...]:
        # Maps are opened where they are read, not sent.
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
        """Call ``build(construction, progress, *part)`` for every part; results in their order.

        Raises
        ------
        Whatever ``build`` does, or a RequestError that tells it.
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
        """See :class:`Workers`."""
        return [build(construction, progress, *part) for part in parts]
