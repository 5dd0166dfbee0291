"""Assign every node to a server, by a method that is chosen by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.schema import GraphSchema
from hopper.partition.balance import Balance
from hopper.partition.metis_process import assign_metis, choose_backend
from hopper.partition.neighbor_stream import NeighborStream
from hopper.partition.node_arrays import NodeArrays
from hopper.partition.partitioner import NONE, assign_with, find_partitioner
from hopper.partition.random import assign_random
from hopper.partition.streaming import assign_stream
from hopper.partition.symmetrise import symmetrise, type_starts
from hopper.phases import Phases
from hopper.plug_ins import FORM

METHODS: Final = ("metis", "stream", "random")
BY_RELATION: Final = "meta"
"""The method that divides relations instead of nodes (:mod:`hopper.hetero`)."""


@dataclass(frozen=True)
class Assignment:
    """The server of every node, and the method that chose it."""

    homes: Mapping[str, NDArray[np.int32]]
    """for each node type [count] int32, the server of each original id"""
    method: str
    backend: str
    """what computed it: "dgl", "pymetis", "hopper" or the package of a plug-in class"""
    seed: int
    seed_used: bool
    """whether the result depends on the seed"""
    refined: Mapping[str, Any] | None = None
    """what a refiner gained by moving nodes; None without a refiner"""


def check_method(servers: int, method: str, options: Mapping[str, Any] = NONE) -> None:
    """Check the method and the number of servers before a graph is opened.

    Parameters
    ----------
    options: options of a plug-in partitioner.

    Raises
    ------
    RequestError: the method is unknown, a built-in method has options, or there are no servers.
    ConfigError: a plug-in partitioner cannot be found or made.
    """
    if ":" in method:
        find_partitioner(method, options).make()
    elif method not in METHODS:
        raise RequestError(
            f"unknown partition method {method!r}; expected one of: {', '.join(METHODS)}, which "
            f"divide nodes ({BY_RELATION} divides relations), or {FORM}"
        )
    elif options:
        raise RequestError(f"method_options: method {method} has none; got {sorted(options)}")
    if servers < 1:
        raise RequestError(f"number of servers: expected at least 1, given {servers}")


def check_request(
    schema: GraphSchema, servers: int, method: str, options: Mapping[str, Any] = NONE
) -> None:
    """Check a request before the work starts.

    Raises
    ------
    RequestError: the graph is empty, has fewer nodes than servers, or has no edges for METIS; or as
        :func:`check_method`.
    ConfigError: as :func:`check_method`.
    """
    check_method(servers, method, options)
    nodes = sum(kind.count for kind in schema.node_types.values())
    if nodes == 0:
        raise RequestError(f"graph {schema.name!r} is empty: it has no node to give to a server")
    if servers > nodes:
        raise RequestError(
            f"graph {schema.name!r} has {nodes} nodes, too few for {servers} servers; "
            f"use at most {nodes}"
        )
    if method == "metis" and not any(kind.count for kind in schema.relations.values()):
        raise RequestError(
            f"graph {schema.name!r} has no edges, so METIS has nothing to divide it by; "
            "use --method stream or random"
        )


def assign(
    graph: GraphDirectory,
    servers: int,
    method: str,
    seed: int,
    balance: Balance,
    phases: Phases,
    scratch: Path,
    backend: str = "auto",
    options: Mapping[str, Any] = NONE,
) -> Assignment:
    """Assign every node of a graph to a server.

    Parameters
    ----------
    balance: what METIS balances. The method "stream" balances its training roots.
    scratch: a folder for temporary files; METIS needs 8 bytes for each end of an edge there.
    backend: which METIS: "auto", "dgl" or "pymetis".
    options: options of a plug-in partitioner.

    Raises
    ------
    RequestError: :func:`check_request` refuses the request, the backend is missing, METIS fails, or
        a plug-in partitioner returns servers that do not exist.
    """
    schema = graph.schema
    check_request(schema, servers, method, options)
    arrays = NodeArrays(scratch)
    if ":" in method:
        partitioner = find_partitioner(method, options).make()
        with phases.phase(f"assign nodes ({method})"):
            homes = assign_with(partitioner, method, graph, servers, seed)
        package = method.replace(":", ".").partition(".")[0]
        return Assignment(homes, method, package, seed, seed_used=True)
    if method == "random":
        with phases.phase("assign nodes (random)"):
            homes = assign_random(schema, servers, seed, arrays)
        return Assignment(homes, method, "hopper", seed, True)
    topologies = {relation: graph.topology(relation) for relation in schema.relations}
    if method == "stream":
        stream = NeighborStream(schema, topologies)
        stacked = assign_stream(schema, stream, servers, seed, balance.training, phases, arrays)
        return Assignment(
            _split_by_type(schema, stacked), method, "hopper", seed, seed_used=servers > 1
        )
    chosen_backend = choose_backend(backend)
    with phases.phase("make the graph symmetric"):
        adjacency = symmetrise(schema, topologies)
    with phases.phase(f"assign nodes (METIS, {chosen_backend})"):
        weights = balance.weights(schema, topologies, adjacency, chosen_backend)
        stacked = assign_metis(adjacency, weights, servers, seed, chosen_backend, scratch)
    homes = _split_by_type(schema, stacked)
    return Assignment(homes, method, chosen_backend, seed, seed_used=chosen_backend == "pymetis")


def _split_by_type(schema: GraphSchema, stacked: NDArray[np.int32]) -> dict[str, NDArray[np.int32]]:
    """Divide a stacked array into a view for each node type."""
    starts = type_starts(schema)
    return {
        node_type: stacked[starts[node_type] : starts[node_type] + kind.count]
        for node_type, kind in schema.node_types.items()
    }
