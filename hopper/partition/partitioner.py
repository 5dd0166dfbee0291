"""Assign every node to a server, by a built-in method or a plug-in ``package.module:Class``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cache_server.draws.counter import absorb_each, key_of
from hopper.config.plug_ins import FORM, find_plug_in
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.layout import servers_file
from hopper.graph.memory_budget import memory_budget
from hopper.graph.schema import GraphSchema
from hopper.graph.topology import Ids
from hopper.partition.balance import metis_weights
from hopper.partition.extend import assign_like
from hopper.partition.metis import assign_metis, choose_backend, symmetrize
from hopper.partition.stacked_ids import NodeArrays, count_nodes, hash_word, split_by_type
from hopper.partition.streaming import assign_stream
from hopper.timing.phases import Phases

METHODS: Final = ("metis", "stream", "random", "given", "like")
BY_RELATION: Final = "meta"
"""The method that divides relations instead of nodes (:mod:`hopper.hetero`)."""
NONE: Final[Mapping[str, Any]] = {}
_BYTES_A_NODE: Final = 64


class Partitioner(Protocol):
    """Divides the nodes of a graph over servers; its class is called with its options only."""

    def assign(
        self, graph: GraphDirectory, servers: int, seed: int
    ) -> Mapping[str, NDArray[np.integer[Any]]]:
        """Choose the server of every node: for each type [count] integers, by original id, from 0.

        A rank trains the roots whose home is its server, so servers should have equally many
        training nodes; :func:`hopper.partition.balance.training_roots` counts them.

        Parameters
        ----------
        graph: topology by relation, features, labels and splits, as memory maps.
        servers: number of servers.
        seed: the value of ``--seed``. The same seed must give the same result.
        """


@dataclass(frozen=True)
class Assigner:
    """Assigns the nodes of a graph by some method."""

    method: str
    """one of :data:`METHODS`, or "package.module:Class" of a :class:`Partitioner`"""
    roots: Ids
    """[nodes of the target type] int64: number of training roots at each node, which "metis" and
    "stream" balance"""
    phases: Phases
    scratch: Path
    """a folder for temporary files; METIS needs 8 bytes for each end of an edge there"""
    backend: str = "auto"
    """which METIS: "auto", "dgl" or "pymetis\""""
    options: Mapping[str, Any] = field(default_factory=dict)
    """keywords of a plug-in's constructor; of "like", the partitioned directory ``parts``"""

    @property
    def library(self) -> str:
        """What computes it: "dgl", "pymetis", "hopper" or the package of a plug-in class."""
        if ":" in self.method:
            return self.method.replace(":", ".").partition(".")[0]
        return choose_backend(self.backend) if self.method == "metis" else "hopper"

    def uses_seed(self, servers: int) -> bool:
        """Return whether the result depends on the seed."""
        if self.method == "stream":
            return servers > 1
        return self.method not in ("given", "like") and self.library != "dgl"

    def assign(
        self, graph: GraphDirectory, servers: int, seed: int
    ) -> Mapping[str, NDArray[np.int32]]:
        """Choose the server of every node, for each type [count] int32, by original id."""
        if ":" in self.method or self.method == "given":
            with self.phases.phase(f"assign nodes ({self.method})"):
                if self.method == "given":
                    homes = read_given(graph)
                else:
                    plug_in = find_plug_in("method", self.method, Partitioner, {}, self.options)
                    homes = plug_in.make().assign(graph, servers, seed)
            _check_homes(f"method: {self.method}", homes, graph.schema, servers)
            return {n: np.asarray(homes[n]).astype(np.int32) for n in graph.schema.node_types}
        arrays = NodeArrays(self.scratch)
        if self.method == "like":
            step = (Path(self.options["parts"]), servers, self.roots, self.phases, arrays)
            return split_by_type(graph.schema, assign_like(graph, *step))
        if self.method == "random":
            with self.phases.phase("assign nodes (random)"):
                return assign_random(graph.schema, servers, seed, arrays)
        if self.method == "stream":
            stacked = assign_stream(graph, servers, seed, self.roots, self.phases, arrays)
            return split_by_type(graph.schema, stacked)
        backend = choose_backend(self.backend)
        with self.phases.phase("make the graph symmetric"):
            adjacency = symmetrize(graph)
        with self.phases.phase(f"assign nodes (METIS, {backend})"):
            degrees = np.diff(adjacency.indptr)
            weights = metis_weights(graph.schema, self.roots, degrees, backend)
            stacked = assign_metis(adjacency, weights, servers, seed, backend, self.scratch)
        return split_by_type(graph.schema, stacked)


def read_given(graph: GraphDirectory) -> Mapping[str, NDArray[np.integer[Any]]]:
    """Map the server of every node, by type, in the graph directory (``servers/TYPE.npy``)."""
    homes = {}
    for name in graph.schema.node_types:
        file = servers_file(graph.path, name)
        if not file.is_file():
            raise RequestError(
                f"--method given: {file}: no such file; it has the server of every node of {name}"
            )
        homes[name] = np.load(file, mmap_mode="r", allow_pickle=False)
    return homes


def assign_random(
    schema: GraphSchema, servers: int, seed: int, arrays: NodeArrays
) -> dict[str, NDArray[np.int32]]:
    """Deal the nodes of every type to the servers in a random order, which depends on the seed and
    original ids alone; shares of a type differ by one node at most.

    Node u of type T has the variate ``absorb(key_of(stream, seed, hash of T), u)``. Nodes are
    sorted by (variate, id) and dealt in turn. The first goes to server ``hash of T mod servers``,
    so that the nodes left over of many small types do not all go to server 0.
    """
    homes = {}
    for node_type, kind in schema.node_types.items():
        home = homes[node_type] = arrays.full(kind.count, np.int32)
        dealt = hash_word(node_type)
        key = np.uint64(key_of(hash_word("partition"), seed, dealt))
        for ids, variates in _by_variate(key, home.size):
            # A stable sort leaves equal variates in the order of their ids.
            order = np.argsort(variates, kind="stable")
            home[ids[order]] = (np.arange(ids.size) + dealt % servers) % servers
            dealt += ids.size
    return homes


def _by_variate(key: np.uint64, count: int) -> Iterator[tuple[Ids, NDArray[np.uint64]]]:
    """Yield the ids, ascending, and variates of each range of variates, which limit memory."""
    size = memory_budget()
    at_once = max(8 * size.chunk, size.resident // 8) // _BYTES_A_NODE
    ranges = -(-count // at_once)
    bounds = [2**64 * number // max(1, ranges) for number in range(ranges + 1)]
    for low, high in pairwise(bounds):
        pieces = []
        for first in range(0, count, at_once):
            ids = np.arange(first, min(count, first + at_once))
            variates = absorb_each(key, ids)
            in_range = (variates >= np.uint64(low)) & (variates <= np.uint64(high - 1))
            pieces.append((ids[in_range], variates[in_range]))
        ids, variates = (np.concatenate(column) for column in zip(*pieces, strict=True))
        yield ids, variates


def check_method(servers: int, method: str, options: Mapping[str, Any] = NONE) -> None:
    """Check the method, a plug-in's options and the number of servers, before a graph is opened."""
    if ":" in method:
        find_plug_in("method", method, Partitioner, {}, options).make()
    elif method not in METHODS:
        raise RequestError(
            f"unknown partition method {method!r}; expected one of: {', '.join(METHODS)}, which "
            f"divide nodes ({BY_RELATION} divides relations), or {FORM}"
        )
    elif method == "like":
        if set(options) != {"parts"}:
            raise RequestError("method like: expected --like PARTS, a partitioned directory")
    elif options:
        raise RequestError(f"method_options: method {method} has none; got {sorted(options)}")
    if servers < 1:
        raise RequestError(f"number of servers: expected at least 1, given {servers}")


def check_request(
    schema: GraphSchema, servers: int, method: str, options: Mapping[str, Any] = NONE
) -> None:
    """Do what :func:`check_method` does, and refuse a graph that is empty, has fewer nodes than
    servers, or has no edges for METIS."""
    check_method(servers, method, options)
    nodes = count_nodes(schema)
    if nodes == 0:
        raise RequestError(f"graph {schema.name!r} is empty: it has no node to give to a server")
    if servers > nodes:
        text = f"too few for {servers} servers; use at most {nodes}"
        raise RequestError(f"graph {schema.name!r} has {nodes} nodes, {text}")
    if method == "metis" and not any(kind.count for kind in schema.relations.values()):
        raise RequestError(
            f"graph {schema.name!r} has no edges, so METIS has nothing to divide it by; "
            "use --method stream or random"
        )


def _check_homes(
    where: str, homes: Mapping[str, NDArray[Any]], schema: GraphSchema, servers: int
) -> None:
    """Refuse a plug-in's result in which a node type is missing, or a server does not exist."""
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
