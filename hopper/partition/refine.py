"""The interface of refiners, which move nodes between servers after a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import GraphSchema
from hopper.partition.balance import Balance
from hopper.phases import Phases


@dataclass(frozen=True)
class Refinement:
    """The servers of nodes after a refiner has moved some, and its gain.

    Attributes
    ----------
    homes: by node type, [count] int32: the server of each original id.
    description: the "refined" entry of partition.json.
    """

    homes: Mapping[str, NDArray[np.int32]]
    description: Mapping[str, Any]


class Refiner(Protocol):
    """Moves nodes between servers after the method of a division."""

    def check(self, graph: GraphDirectory, servers: int) -> None:
        """Check that the graph can be refined, before the work starts.

        Raises
        ------
        RequestError: it cannot. The text says what was expected and what came.
        """

    def memory(self, schema: GraphSchema, servers: int, balance: Sequence[str]) -> int:
        """Estimate the bytes of memory that refining takes.

        Parameters
        ----------
        balance: names of constraints; empty = the default ones.
        """

    def refine(
        self,
        graph: GraphDirectory,
        homes: Mapping[str, NDArray[np.int32]],
        balance: Balance,
        servers: int,
        phases: Phases,
    ) -> Refinement:
        """Move nodes between servers.

        Parameters
        ----------
        homes: by node type, [count] int32: the server of each original id.
        balance: the constraints of which servers should have equal shares.
        """
