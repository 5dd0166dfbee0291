"""Divide a graph like an earlier one: known nodes stay, and new ones go beside their neighbours."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.layout import names_file
from hopper.graph.names import Names
from hopper.graph.topology import Ids
from hopper.partition.balance import balance_classes, room_of
from hopper.partition.by_relation import ByRelation
from hopper.partition.label_passes import NO_LABEL, Labelling, Labels, NeighborStream
from hopper.partition.partitioned_graph import PartitionedGraph
from hopper.partition.stacked_ids import NodeArrays, type_slices
from hopper.partition.streaming import place_new
from hopper.timing.phases import Phases

_AT_ONCE: Final = 1 << 20


def assign_like(
    graph: GraphDirectory,
    parts: Path,
    servers: int,
    roots: Ids,
    phases: Phases,
    arrays: NodeArrays,
) -> Labels:
    """Return [nodes] int32: the server of every stacked id.

    A node that the partitioned directory ``parts`` has, by the source's name of it, keeps its
    server. Names are compared in memory. New nodes go where most of their neighbours are, if there
    is room: servers get equal shares within 5 % of each type, and of training nodes, as far as the
    known ones allow. ``roots`` [nodes of the target type] are the numbers of training roots.

    Raises
    ------
    RequestError: the earlier graph is divided over another number of servers, or by relation.
    """
    earlier = PartitionedGraph.open(parts)
    if earlier.book.servers != servers or isinstance(earlier.layout, ByRelation):
        raise RequestError(
            f"--like: expected {parts} to be divided by node over {servers} servers, given "
            f"{earlier.layout.name} over {earlier.book.servers}"
        )
    stream = NeighborStream(graph)
    homes = arrays.full(stream.nodes, np.int32, NO_LABEL)
    for node_type, ids in type_slices(graph.schema).items():
        if node_type in earlier.schema.node_types:
            homes[ids] = _known_homes(graph, earlier, node_type)
    known = homes >= 0
    classes = balance_classes(graph.schema, roots, arrays.full(stream.nodes, np.uint8))
    number = int(classes.max(initial=0)) + 1
    room = room_of(np.bincount(classes, minlength=number), servers)
    load = np.zeros((servers, number), np.int64)
    np.add.at(load, (homes[known], classes[known]), 1)
    # Servers have neither room for the class of nodes that stay, nor too many of them.
    classes[known] = number
    state = Labelling(homes, classes, np.pad(load, ((0, 0), (0, 1))), np.append(room, 0))
    place_new(stream, state, phases, f"{int((~known).sum()):,} new, {int(known.sum()):,} stay")
    return homes


def _known_homes(graph: GraphDirectory, earlier: PartitionedGraph, node_type: str) -> Labels:
    """Return [count] int32: the server that each node of a type had, ``NO_LABEL`` for new ones."""
    count = graph.schema.node_types[node_type].count
    before = earlier.schema.node_types[node_type].count
    home_of = np.empty(before, np.int32)
    for first in range(0, before, _AT_ONCE):
        ids = np.arange(first, min(before, first + _AT_ONCE))
        global_ids = np.asarray(earlier.global_ids(node_type)[ids], np.int64)
        home_of[ids] = earlier.book.home(node_type, global_ids)
    file = names_file(graph.path, node_type)
    names, old_names = Names.open(file, count), earlier.names(node_type)
    homes = np.full(count, NO_LABEL, np.int32)
    if names is None and old_names is None:
        same = min(count, before)
        homes[:same] = home_of[:same]
        return homes
    import pyarrow.compute

    known = pyarrow.compute.index_in(_texts(names, count), value_set=_texts(old_names, before))
    rows = known.fill_null(-1).to_numpy()
    homes[rows >= 0] = home_of[rows[rows >= 0]]
    return homes


def _texts(names: Names | None, count: int) -> Any:
    """Return the names of a type's nodes as an Arrow array; those without one are numbers."""
    import pyarrow

    pieces = []
    for first in range(0, count, _AT_ONCE):
        ids: NDArray[np.int64] = np.arange(first, min(count, first + _AT_ONCE))
        texts = names.of(ids) if names is not None else map(str, ids.tolist())
        pieces.append(pyarrow.array(texts, pyarrow.large_string()))
    return pyarrow.concat_arrays(pieces or [pyarrow.array([], pyarrow.large_string())])
