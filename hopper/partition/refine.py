"""Moving nodes between servers after a method has placed them."""

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
    """Where nodes are after they moved, and what that gained.

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
        """Refuse what it cannot refine, before any work.

        Raises
        ------
        RequestError: names what was expected and what came.
        """

    def memory(self, schema: GraphSchema, servers: int, balance: Sequence[str]) -> int:
        """Bytes that it needs, about.

        Parameters
        ----------
        balance: constraints by name; none are the usual ones.
        """

    def refine(
        self,
        graph: GraphDirectory,
        homes: Mapping[str, NDArray[np.int32]],
        balance: Balance,
        servers: int,
        phases: Phases,
    ) -> Refinement:
        """Move nodes.

        Parameters
        ----------
        homes: by node type, [count] int32: the server of each original id.
        balance: what the servers are to have equal shares of.
        """
