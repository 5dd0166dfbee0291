"""Write a graph directory, first into a temporary folder that is renamed when it is complete."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph import check_values, layout
from hopper.graph.array_file import (
    array_bytes,
    create_array,
    iter_pieces,
    name_in_errors,
    save_array,
)
from hopper.graph.build_topology import SortEdges, fill_topology
from hopper.graph.columns import FeatureColumn
from hopper.graph.publish import atomic_output_dir
from hopper.graph.row_form import stored_features
from hopper.graph.schema import EdgeType, GraphSchema, Labelled, NodeType, Relation
from hopper.graph.schema_json import check_schema, write_schema
from hopper.graph.topology import Topology


class GraphWriter:
    """Writes the parts of a graph in any order, and publishes the graph when it is complete.

    This is a context manager. Parts go to a temporary directory beside ``out``. Leaving the context
    checks that no part of the schema is missing, and renames the directory to ``out``. An exception
    removes it. Arrays that are returned for filling are memory maps, so features may be larger than
    memory.

    Parameters
    ----------
    out: the directory to write; it must not exist or be empty.
    schema: the schema of what will be written. Counts, widths and dtypes must be final.

    Raises
    ------
    GraphError: the schema contradicts itself, or a part contradicts the schema.
    RequestError: ``out`` has content, or there is too little space on its disk.
    """

    def __init__(self, out: str | Path, schema: GraphSchema) -> None:
        self.out = Path(out)
        self.schema = schema
        self._work = Path()
        self._publication = ExitStack()
        self._missing: set[tuple[str, str]] = set()

    def __enter__(self) -> GraphWriter:
        check_schema(self.schema, str(self.out / layout.SCHEMA_FILE))
        self._work = self._publication.enter_context(
            atomic_output_dir(self.out, required_bytes(self.schema))
        )
        self._missing = _list_parts(self.schema)
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error_type is not None:
            self._publication.__exit__(error_type, error, traceback)
            return
        with self._publication:
            if self._missing:
                parts = ", ".join(f"{part} of {name}" for part, name in sorted(self._missing))
                raise GraphError(f"{self.out}: not written, though in the schema: {parts}")
            write_schema(self._work, self.schema)

    def topology(
        self,
        relation: Relation,
        src: NDArray[np.integer[Any]],
        dst: NDArray[np.integer[Any]],
        sort: SortEdges | None = None,
    ) -> None:
        """Build and write a relation's CSC from its edge list, straight into the files.

        Parameters
        ----------
        src, dst: [edges] int32 or int64, the ends of edge 0, 1, ...; an edge's id is its index.
        sort: sorts edges that memory does not hold; None = sort in memory.
        """
        relation = self._begin_relation(relation, src.size)
        work = self._create_topology(relation)
        fill_topology(src, dst, work, sort, where=f"edges of {relation}")
        self._missing.discard(("topology", str(relation)))

    def topology_csc(self, relation: Relation, topology: Topology) -> None:
        """Write a relation's CSC that is already built; its values are checked at opening."""
        relation = self._begin_relation(relation, topology.indices.size)
        files = self._create_topology(relation)
        for name in layout.TOPOLOGY_ARRAYS:
            source, target = getattr(topology, name), getattr(files, name)
            if source.shape != target.shape or source.dtype not in layout.ID_DTYPES:
                raise GraphError(
                    f"{self.out}: {name} of {relation}: expected int32 or int64 of shape "
                    f"{list(target.shape)}, given {source.dtype} of shape {list(source.shape)}"
                )
            target[...] = source
        self._missing.discard(("topology", str(relation)))

    def features(self, node_type: str) -> NDArray[Any]:
        """Create the features of a node type, zeros to be filled: [count, feature_dim]."""
        kind = self.schema.node_types.get(node_type)
        if kind is None:
            raise GraphError(f"{self.out}: features: the schema has no node type {node_type!r}")
        file = layout.features_file(self._work, node_type)
        return self._create_table(file, kind, "features", node_type)

    def edge_features(self, relation: Relation) -> NDArray[Any]:
        """Create a relation's edge features by edge id, to be filled: [edges, feature_dim]."""
        kind = self.schema.relations.get(relation)
        if kind is None:
            raise GraphError(f"{self.out}: edge features: the schema has no {relation}")
        file = layout.edge_features_file(self._work, relation)
        return self._create_table(file, kind, "edge features", str(relation))

    def times(self, owner: Labelled, times: NDArray[Any]) -> None:
        """Write the times of a node type's nodes, or of a relation's edges.

        Parameters
        ----------
        times: [count] int64; times of edges are in order of edge id.
        """
        if owner not in self.schema.timed:
            raise GraphError(f"{self.out}: times: the schema has none for {owner}")
        expected = (self.schema.count_of(owner),)
        if times.dtype != np.int64 or times.shape != expected:
            raise GraphError(
                f"{self.out}: times of {owner}: expected int64 of shape {list(expected)}, given "
                f"{times.dtype} of shape {list(times.shape)}"
            )
        save_array(layout.times_file(self._work, owner), times)
        self._missing.discard(("times", str(owner)))

    def edge_weights(self, relation: Relation, weights: NDArray[Any]) -> None:
        """Write the weights of a relation's edges.

        Parameters
        ----------
        weights: [edges] float32, positive, in order of edge id.
        """
        kind = self.schema.relations.get(relation)
        if kind is None or not kind.weighted:
            raise GraphError(f"{self.out}: weights: the schema has none for {relation}")
        where = f"{self.out}: weights of {relation}"
        if weights.dtype != np.float32 or weights.shape != (kind.count,):
            raise GraphError(
                f"{where}: expected float32 of shape [{kind.count}], given {weights.dtype} of "
                f"shape {list(weights.shape)}"
            )
        check_values.check_weights(weights, where)
        save_array(layout.edge_weights_file(self._work, relation), weights)
        self._missing.discard(("weights", str(relation)))

    def labels(self, owner: Labelled, values: NDArray[Any]) -> None:
        """Write the labels of a node type's nodes, or of a relation's edges by edge id.

        Dtype and shape are those of :meth:`GraphDirectory.labels`.
        """
        labels = self.schema.labels.get(owner)
        if labels is None:
            raise GraphError(f"{self.out}: labels: the schema has none for {str(owner)!r}")
        where = f"{self.out}: labels of {owner}"
        dtype, shapes = check_values.label_format(labels, self.schema.count_of(owner))
        if values.dtype != dtype or values.shape not in shapes:
            raise GraphError(
                f"{where}: expected {dtype} of shape {' or '.join(str(list(s)) for s in shapes)}, "
                f"given {values.dtype} of shape {list(values.shape)}"
            )
        for first, rows in iter_pieces(values):
            check_values.check_labels(rows, labels, where, first)
        save_array(layout.labels_file(self._work, owner), values)
        self._missing.discard(("labels", str(owner)))

    def split(self, name: str, ids: NDArray[np.integer[Any]]) -> None:
        """Write a split: distinct ids of the target type or edge ids of the target relation.

        Parameters
        ----------
        ids: [n] integers in any order; stored ascending.
        """
        where = f"{self.out}: split {name}"
        if name not in self.schema.splits:
            raise GraphError(f"{where}: not in the schema's splits {sorted(self.schema.splits)}")
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
            raise GraphError(
                f"{where}: expected a one-dimensional integer array, "
                f"given {ids.dtype} of shape {list(ids.shape)}"
            )
        if ids.size != self.schema.splits[name]:
            raise GraphError(f"{where}: expected {self.schema.splits[name]} ids, given {ids.size}")
        ascending: NDArray[Any] = ids
        if ids.dtype != np.int64 or check_values.find_not_ascending(ids) >= 0:
            ascending = np.sort(ids.astype(np.int64))
        check_values.check_split(ascending, self.schema.target_count, where)
        save_array(layout.split_file(self._work, name), ascending)
        self._missing.discard(("split", name))

    def names(self, node_type: str, names: Sequence[str]) -> None:
        """Write the source's names of a type's nodes to ``names/<type>.txt``, one line a node.

        They are not part of the schema. Predictions show them.
        """
        kind = self.schema.node_types.get(node_type)
        if kind is None or len(names) != kind.count:
            raise GraphError(
                f"{self.out}: names of {node_type}: expected one for each of the nodes of the "
                f"schema, given {len(names)}"
            )
        self._write_names(layout.names_file(self._work, node_type), names, f"names of {node_type}")

    def label_names(self, owner: Labelled, names: Sequence[str], task: str = "") -> None:
        """Write the source's names of the classes of a node type or a relation, one line a class.

        Parameters
        ----------
        task: which of several tasks the classes are of; "" = there is one.
        """
        file = layout.label_names_file(self._work, owner, task)
        self._write_names(file, names, f"names of classes of {owner}")

    def columns(self, owner: Labelled, columns: Sequence[FeatureColumn]) -> None:
        """Add the columns of the features of a node type or a relation to the schema."""
        node_types, relations = dict(self.schema.node_types), dict(self.schema.relations)
        if isinstance(owner, Relation):
            relations[owner] = replace(relations[owner], columns=tuple(columns))
        else:
            node_types[owner] = replace(node_types[owner], columns=tuple(columns))
        self.schema = replace(self.schema, node_types=node_types, relations=relations)

    def _write_names(self, file: Path, names: Sequence[str], what: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with name_in_errors(file), file.open("w", encoding="utf-8") as stream:
            for row, name in enumerate(names):
                if "\n" in name or "\r" in name:
                    raise GraphError(
                        f"{self.out}: {what}: row {row}: expected one line, given {name!r}"
                    )
                stream.write(f"{name}\n")

    def _begin_relation(self, relation: Relation, edges: int) -> Relation:
        kind = self.schema.relations.get(relation)
        if kind is None:
            raise GraphError(f"{self.out}: topology: the schema has no {'/'.join(relation)}")
        if edges != kind.count:
            raise GraphError(
                f"{self.out}: topology of {'/'.join(relation)}: expected {kind.count} edges, "
                f"given {edges}"
            )
        return Relation(*relation)

    def _create_topology(self, relation: Relation) -> Topology:
        files = {
            name: create_array(layout.topology_file(self._work, relation, name), dtype, (length,))
            for name, (dtype, length) in _topology_arrays(self.schema, relation).items()
        }
        return Topology(**files)

    def _create_table(
        self, file: Path, kind: NodeType | EdgeType, part: str, name: str
    ) -> NDArray[Any]:
        features = stored_features(kind)
        if features is None:
            raise GraphError(f"{self.out}: {part} of {name}: the schema says there are none")
        self._missing.discard((part, name))
        return create_array(file, features.dtype, (kind.count, features.columns))


def required_bytes(schema: GraphSchema) -> int:
    """Return the bytes on disk of a graph directory with this schema, without ``graph.json``."""
    total = 0
    for relation in schema.relations:
        arrays = _topology_arrays(schema, relation).values()
        total += sum(array_bytes(dtype, (length,)) for dtype, length in arrays)
    tables: list[NodeType | EdgeType] = [*schema.node_types.values(), *schema.relations.values()]
    for kind in tables:
        features = stored_features(kind)
        if features is not None:
            total += array_bytes(features.dtype, (kind.count, features.columns))
    for edges in schema.relations.values():
        total += array_bytes(np.float32, (edges.count,)) if edges.weighted else 0
    total += sum(array_bytes(np.int64, (schema.count_of(owner),)) for owner in schema.timed)
    for owner, labels in schema.labels.items():
        dtype, shapes = check_values.label_format(labels, schema.count_of(owner))
        total += array_bytes(dtype, shapes[-1])
    return total + sum(array_bytes(np.int64, (count,)) for count in schema.splits.values())


def _topology_arrays(
    schema: GraphSchema, relation: Relation
) -> dict[layout.TopologyArray, tuple[np.dtype[Any], int]]:
    ends = (schema.node_types[name].count for name in (relation.src, relation.dst))
    return layout.topology_arrays(schema.relations[relation].count, *ends)


def _list_parts(schema: GraphSchema) -> set[tuple[str, str]]:
    parts = {("topology", str(relation)) for relation in schema.relations}
    parts |= {("features", name) for name, kind in schema.node_types.items() if kind.feature_dim}
    parts |= {
        ("edge features", str(relation))
        for relation, kind in schema.relations.items()
        if kind.feature_dim
    }
    parts |= {
        ("weights", str(relation)) for relation, kind in schema.relations.items() if kind.weighted
    }
    parts |= {("times", str(owner)) for owner in schema.timed}
    parts |= {("labels", str(owner)) for owner in schema.labels}
    return parts | {("split", name) for name in schema.splits}
