"""Call plug-in partitioners: ``hopper partition --method package.module:Class``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import GraphSchema
from hopper.plug_ins import PlugIn, find_plug_in

NONE: Final[Mapping[str, Any]] = {}


class Partitioner(Protocol):
    """Divides the nodes of a graph over servers; its class is called with its options only."""

    def assign(
        self, graph: GraphDirectory, servers: int, seed: int
    ) -> Mapping[str, NDArray[np.integer[Any]]]:
        """Choose the server of every node.

        A rank trains the roots whose home is its server, so servers should have equally many
        training nodes; :func:`hopper.partition.training.training_roots` counts them.

        Parameters
        ----------
        graph: topology by relation, features, labels and splits, as memory maps.
        servers: number of servers.
        seed: the value of ``--seed``. The same seed must give the same result.

        Returns
        -------
        For each node type, [count] integers: the server of each original id, from 0.
        """
        ...


def find_partitioner(method: str, options: Mapping[str, Any]) -> PlugIn[Partitioner]:
    """Find the partitioner that a method of the form "package.module:Class" names.

    Raises
    ------
    ConfigError: it cannot be imported, is not a :class:`Partitioner`, or does not take the options.
    """
    return find_plug_in("method", method, Partitioner, {}, options)


def assign_with(
    partitioner: Partitioner, name: str, graph: GraphDirectory, servers: int, seed: int
) -> dict[str, NDArray[np.int32]]:
    """Call a partitioner, and check its result.

    Raises
    ------
    RequestError: a node type is missing, a node has no server, or a server does not exist.
    """
    homes = partitioner.assign(graph, servers, seed)
    _check(f"method: {name}", homes, graph.schema, servers)
    types = graph.schema.node_types
    return {node_type: np.asarray(homes[node_type]).astype(np.int32) for node_type in types}


def _check(
    where: str, homes: Mapping[str, NDArray[Any]], schema: GraphSchema, servers: int
) -> None:
    if not isinstance(homes, Mapping) or set(homes) != set(schema.node_types):
        types = sorted(homes) if isinstance(homes, Mapping) else type(homes).__name__
        raise RequestError(
            f"{where}: expected servers of the node types {sorted(schema.node_types)}; got {types}"
        )
    for node_type, kind in schema.node_types.items():
        assigned = np.asarray(homes[node_type])
        if assigned.shape != (kind.count,) or assigned.dtype.kind not in "iu":
            raise RequestError(
                f"{where}: {node_type}: expected [{kind.count}] integers, a server for every "
                f"original id; got {list(assigned.shape)} of {assigned.dtype}"
            )
        wrong = np.flatnonzero((assigned < 0) | (assigned >= servers))
        if wrong.size:
            raise RequestError(
                f"{where}: {node_type}: expected servers from 0 to {servers - 1}; got "
                f"{assigned[wrong[0]]} for node {wrong[0]}"
            )
