"""What kernels rely on in a partitioned directory: that no id leads out of an array."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.check_topology import check_bounds, check_lists
from hopper.graph.check_values import check_labels, check_split, find_outside
from hopper.graph.layout import link_labels_file, links_file, split_file
from hopper.partition.layouts import DividedTopology, MapName, map_file, server_folder
from hopper.partition.partitioned_graph import PartitionedGraph


def check_partition(graph: PartitionedGraph, servers: Sequence[int]) -> None:
    """Check topology, maps between ids, and splits.

    Parameters
    ----------
    servers: whose folders are checked.

    Raises
    ------
    GraphError: an array does not fit the others; names the file and the place.
    """
    for topology, relation, folder in graph.layout.stored_topologies(servers):
        check_bounds(topology, relation, folder)
    if isinstance(graph.layout, DividedTopology):
        for relation, server in itertools.product(graph.relations, servers):
            topology, own = graph.topology(relation, server), graph.book.range(relation.dst, server)
            check_lists(topology, relation, server_folder(graph.path, server), *own)
    for node_type in graph.schema.node_types if graph.layout.is_renumbered else ():
        _check_maps(graph, node_type)
    for name in graph.schema.splits:
        where = f"{split_file(graph.path, name)}: split {name}"
        links = bool(graph.schema.target_relations)
        # Edges that are predicted are not all stored, so their ids know no bound here.
        most = np.iinfo(np.int64).max if links else graph.schema.target_count
        check_split(graph.split(name), most, where)
        if links:
            _check_links(graph, name)


def _check_links(graph: PartitionedGraph, split: str) -> None:
    """Check that the ends of a split's links are nodes of their relations' types, and their labels
    what the schema says."""
    links, relations = graph.links(split), graph.schema.target_relations
    where = f"{links_file(graph.path, split)}: links of {split}"
    place = find_outside(links.relations, 0, len(relations))
    if place >= 0:
        raise GraphError(
            f"{where}: at {place}: expected one of {len(relations)} target relations, given "
            f"{int(links.relations[place])}"
        )
    for number, relation in enumerate(relations):
        chosen = links.relations == number
        for end, node_type in ((links.src, relation.src), (links.dst, relation.dst)):
            count = graph.schema.node_types[node_type].count
            if find_outside(end[chosen], 0, count) >= 0:
                raise GraphError(f"{where}: expected nodes of {node_type} in [0, {count})")
    if links.labels is not None and graph.schema.target_labels is not None:
        where = f"{link_labels_file(graph.path, split)}: labels of {split}"
        check_labels(links.labels, graph.schema.target_labels, where)


def _check_maps(graph: PartitionedGraph, node_type: str) -> None:
    """Check that the two maps of a node type undo each other."""
    originals, globals_ = graph.original_ids(node_type), graph.global_ids(node_type)
    names: tuple[MapName, ...] = ("original_ids", "global_ids")
    for name, ids in zip(names, (originals, globals_), strict=True):
        place = find_outside(ids, 0, ids.size)
        if place >= 0:
            raise GraphError(
                f"{map_file(graph.path, node_type, name)}: {name} of {node_type}: at {place}: "
                f"expected an id in [0, {ids.size}), given {int(ids[place])}"
            )
    place = _find_difference(originals, globals_)
    if place >= 0:
        raise GraphError(
            f"{map_file(graph.path, node_type, 'global_ids')}: global_ids of {node_type}: expected "
            f"{place} of original id {int(originals[place])}, given "
            f"{int(globals_[originals[place]])}"
        )


def _find_difference(originals: NDArray[np.int64], globals_: NDArray[np.int64]) -> int:
    """The first global id that the two maps do not lead back to; -1 if there is none."""
    step = 1 << 20
    for first in range(0, originals.size, step):
        part = np.asarray(originals[first : first + step])
        wrong = np.flatnonzero(globals_[part] != np.arange(first, first + part.size))
        if wrong.size:
            return first + int(wrong[0])
    return -1
