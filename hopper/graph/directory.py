"""Open a graph directory: everything memory-mapped, checked before anything relies on it.

The layout is specified in docs/graph-directory.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph import check_values, layout
from hopper.graph.array_file import open_array
from hopper.graph.check_topology import check_topology
from hopper.graph.schema import GraphSchema, Relation
from hopper.graph.schema_json import read_schema
from hopper.graph.topology import Topology

Check = Literal["full", "shapes"]


@dataclass(frozen=True)
class GraphDirectory:
    """A graph on disk. Arrays are read-only memory maps, indexed by original ids."""

    path: Path
    schema: GraphSchema

    @classmethod
    def open(cls, path: str | Path, check: Check = "full") -> GraphDirectory:
        """Open and check a graph directory.

        Parameters
        ----------
        check: ``"shapes"`` reads ``graph.json`` and the header of every array (presence, dtype and
            shape); ``"full"`` scans the values of topologies, labels and splits as well, in memory
            of 8 bytes per node and one bit per edge. Feature values are never scanned.

        Raises
        ------
        GraphError: something is missing or wrong; names file, field, expected and given.
        """
        if check not in ("full", "shapes"):
            raise ValueError(f"check: expected 'full' or 'shapes', given {check!r}")
        root = Path(path)
        if not root.is_dir():
            raise GraphError(f"{root}: not a directory")
        graph = cls(root, read_schema(root))
        graph._check(full=check == "full")
        return graph

    def topology(self, relation: Relation) -> Topology:
        """The CSC of a relation, ids being original ids."""
        root, relation = self.path, self._known_relation(relation)
        edges = self.schema.relations[relation].count
        sources = self.schema.node_types[relation.src].count
        destinations = self.schema.node_types[relation.dst].count
        return open_topology(root, relation, edges, sources, destinations)

    def features(self, node_type: str) -> NDArray[Any]:
        """[count, feature_dim] float32 or float16: the features of a node type."""
        kind = self.schema.node_types.get(node_type)
        if kind is None or kind.feature_dim is None or kind.feature_dtype is None:
            raise GraphError(f"{self.path}: node type {node_type!r} has no features")
        file = layout.features_file(self.path, node_type)
        shape = (kind.count, kind.feature_dim)
        return open_array(file, f"features of {node_type}", kind.feature_dtype, shape)

    def edge_features(self, relation: Relation) -> NDArray[Any]:
        """[edges, feature_dim] float32 or float16: the edge features, in order of edge id."""
        kind = self.schema.relations[self._known_relation(relation)]
        if kind.feature_dim is None or kind.feature_dtype is None:
            raise GraphError(f"{self.path}: relation {relation} has no edge features")
        file = layout.edge_features_file(self.path, relation)
        shape = (kind.count, kind.feature_dim)
        return open_array(file, f"edge features of {relation}", kind.feature_dtype, shape)

    def labels(self, node_type: str) -> NDArray[Any]:
        """Labels of a node type, by kind.

        ``class``: [count] int64 in [-1, classes), -1 being unlabelled; ``multi_hot``:
        [count, classes] uint8 of 0 and 1; ``float``: [count, classes] float32, or [count] where
        classes is 1.
        """
        labels = self.schema.labels.get(node_type)
        if labels is None:
            raise GraphError(f"{self.path}: node type {node_type!r} has no labels")
        dtype, shapes = check_values.label_format(labels, self.schema.node_types[node_type].count)
        file = layout.labels_file(self.path, node_type)
        return open_array(file, f"labels of {node_type}", dtype, *shapes)

    def split(self, name: str) -> NDArray[np.int64]:
        """[n] int64, ascending: ids of the target type, or edge ids of the target relation."""
        if name not in self.schema.splits:
            raise GraphError(
                f"{self.path}: split {name!r}: expected one of {sorted(self.schema.splits)}"
            )
        file = layout.split_file(self.path, name)
        return open_array(file, f"split {name}", np.int64, (self.schema.splits[name],))

    def _known_relation(self, relation: Relation) -> Relation:
        if relation not in self.schema.relations:
            raise GraphError(f"{self.path}: no relation {'/'.join(relation)}")
        return Relation(*relation)

    def _check(self, full: bool) -> None:
        for relation, edges in self.schema.relations.items():
            topology = self.topology(relation)
            if full:
                check_topology(topology, relation, self.path)
            if edges.feature_dim is not None:
                self.edge_features(relation)
        for node_type, kind in self.schema.node_types.items():
            if kind.feature_dim is not None:
                self.features(node_type)
        for node_type, labels in self.schema.labels.items():
            values = self.labels(node_type)
            if full:
                where = f"{layout.labels_file(self.path, node_type)}: labels of {node_type}"
                check_values.check_labels(values, labels, where)
        for name in self.schema.splits:
            ids = self.split(name)
            if full:
                where = f"{layout.split_file(self.path, name)}: split {name}"
                check_values.check_split(ids, check_values.target_count(self.schema), where)


def open_topology(
    root: Path,
    relation: Relation,
    edges: int | None,
    sources: int,
    destinations: int,
    degrees: Path | None = None,
) -> Topology:
    """Map the arrays of a relation's CSC in a graph or partitioned directory.

    Parameters
    ----------
    edges: how many there must be; None = as many as ``indptr`` tells.
    degrees: the directory of the nodes' degrees; None = ``root``.

    Raises
    ------
    GraphError: an array is missing or has the wrong dtype or shape.
    """

    def array(name: layout.TopologyArray, length: int, folder: Path = root) -> NDArray[np.int64]:
        file = layout.topology_file(folder, relation, name)
        return open_array(file, f"{name} of {relation}", np.int64, (length,))

    indptr = array("indptr", destinations + 1)
    count = int(indptr[-1]) if edges is None else edges
    return Topology(
        indptr=indptr,
        indices=array("indices", count),
        edge_ids=array("edge_ids", count),
        in_degrees=array("in_degrees", destinations, degrees or root),
        out_degrees=array("out_degrees", sources, degrees or root),
    )
