"""Partitioners of one's own: `hopper partition --method package.module:Class`."""

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
    """Divides the nodes of a graph over servers. Its class is called with its options alone."""

    def assign(
        self, graph: GraphDirectory, servers: int, seed: int
    ) -> Mapping[str, NDArray[np.integer[Any]]]:
        """The server of every node.

        A rank trains the roots that live on its server, so training nodes should be even;
        :func:`hopper.partition.training.training_roots` counts them.

        Parameters
        ----------
        graph: topology by relation, features, labels and splits, as memory maps.
        servers: how many.
        seed: of ``--seed``; the same seed has to give the same result.

        Returns
        -------
        By node type, [count] of an integer dtype: the server of each original id, from 0.
        """
        ...


def find_partitioner(method: str, options: Mapping[str, Any]) -> PlugIn[Partitioner]:
    """The partitioner that a method of the form "package.module:Class" names.

    Raises
    ------
    ConfigError: it cannot be imported, is no :class:`Partitioner`, or does not take the options.
    """
    return find_plug_in("method", method, Partitioner, {}, options)


def assign_by(
    partitioner: Partitioner, name: str, graph: GraphDirectory, servers: int, seed: int
) -> dict[str, NDArray[np.int32]]:
    """What a partitioner says, checked.

    Raises
    ------
    RequestError: a node type is missing, a node has no server, or one that does not exist.
    """
    homes = partitioner.assign(graph, servers, seed)
    _check(f"method: {name}", homes, graph.schema, servers)
    return {each: np.asarray(homes[each]).astype(np.int32) for each in graph.schema.node_types}


def _check(
    where: str, homes: Mapping[str, NDArray[Any]], schema: GraphSchema, servers: int
) -> None:
    if not isinstance(homes, Mapping) or set(homes) != set(schema.node_types):
        found = sorted(homes) if isinstance(homes, Mapping) else type(homes).__name__
        raise RequestError(
            f"{where}: expected servers of the node types {sorted(schema.node_types)}; got {found}"
        )
    for node_type, described in schema.node_types.items():
        given = np.asarray(homes[node_type])
        if given.shape != (described.count,) or given.dtype.kind not in "iu":
            raise RequestError(
                f"{where}: {node_type}: expected [{described.count}] integers, a server for every "
                f"original id; got {list(given.shape)} of {given.dtype}"
            )
        wrong = np.flatnonzero((given < 0) | (given >= servers))
        if wrong.size:
            raise RequestError(
                f"{where}: {node_type}: expected servers from 0 to {servers - 1}; got "
                f"{given[wrong[0]]} for node {wrong[0]}"
            )
