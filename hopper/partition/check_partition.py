"""Check that no id of a partitioned directory is out of bounds, as kernels rely on."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.array_file import iter_pieces
from hopper.graph.check_topology import check_bounds, check_lists
from hopper.graph.check_values import check_labels, check_split, find_outside
from hopper.graph.layout import link_labels_file, links_file, split_file
from hopper.partition.by_node import DividedTopology
from hopper.partition.file_names import MAP_NAMES, MapName, map_file
from hopper.partition.partitioned_graph import PartitionedGraph


def check_partition(graph: PartitionedGraph, servers: Sequence[int]) -> None:
    """Check topology, maps between ids, and splits, with the folders of some servers; a
    :class:`GraphError` names file and index of what does not fit."""
    for topology, relation, folder in graph.layout.stored_topologies(servers):
        check_bounds(topology, relation, folder)
        if isinstance(graph.layout, DividedTopology):
            check_lists(topology, relation, folder)
    # Where relations are divided, nodes keep their ids.
    for node_type in () if graph.partitions else graph.schema.node_types:
        _check_maps(graph, node_type)
    for name in graph.schema.splits:
        where = f"{split_file(graph.path, name)}: split {name}"
        links = bool(graph.schema.target_relations)
        # Not all target edges are stored, so the number of their ids is not known here.
        most = np.iinfo(np.int64).max if links else graph.schema.target_count
        check_split(graph.split(name), most, where)
        if links:
            _check_links(graph, name)


def _check_links(graph: PartitionedGraph, split: str) -> None:
    """Check that the ends of a split's links are nodes of the right types; check their labels."""
    links, relations = graph.links(split), graph.schema.target_relations
    where = f"{links_file(graph.path, split)}: links of {split}"
    index = find_outside(links.relations, 0, len(relations))
    if index >= 0:
        raise GraphError(
            f"{where}: at {index}: expected one of {len(relations)} target relations, given "
            f"{int(links.relations[index])}"
        )
    for number, relation in enumerate(relations):
        of_relation = links.relations == number
        for end, node_type in ((links.src, relation.src), (links.dst, relation.dst)):
            count = graph.schema.node_types[node_type].count
            if find_outside(end[of_relation], 0, count) >= 0:
                raise GraphError(f"{where}: expected nodes of {node_type} in [0, {count})")
    if links.labels is not None and graph.schema.target_labels is not None:
        where = f"{link_labels_file(graph.path, split)}: labels of {split}"
        check_labels(links.labels, graph.schema.target_labels, where)


def _check_maps(graph: PartitionedGraph, node_type: str) -> None:
    """Check that the two maps of a node type are inverse to each other."""
    maps, where = dict[MapName, NDArray[np.int64]](), dict[MapName, str]()
    for name in MAP_NAMES:
        ids = maps[name] = graph.layout.map(node_type, name)
        where[name] = f"{map_file(graph.path, node_type, name)}: {name} of {node_type}"
        index = find_outside(ids, 0, ids.size)
        if index >= 0:
            raise GraphError(
                f"{where[name]}: at {index}: expected an id in [0, {ids.size}), given "
                f"{int(ids[index])}"
            )
    for first, originals in iter_pieces(maps["original_ids"]):
        back = maps["global_ids"][originals]
        wrong = np.flatnonzero(back != np.arange(first, first + originals.size))
        if wrong.size:
            raise GraphError(
                f"{where['global_ids']}: expected {first + int(wrong[0])} of original id "
                f"{int(originals[wrong[0]])}, given {int(back[wrong[0]])}"
            )
