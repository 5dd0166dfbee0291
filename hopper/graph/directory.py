"""Open a graph directory: check it, and map its arrays.

The layout is specified in docs/reference/graph-directory.md.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from hopper.errors import GraphError
from hopper.graph import layout
from hopper.graph.array_file import iter_pieces, open_array
from hopper.graph.check_topology import check_topology
from hopper.graph.check_values import check_array
from hopper.graph.publish import refuse_occupied
from hopper.graph.schema import GraphSchema, Labelled, Relation
from hopper.graph.schema_json import read_schema
from hopper.graph.topology import Links, Topology

if TYPE_CHECKING:
    from hopper.graph.importers import GraphTables, ImportOptions

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
        check: ``"shapes"`` checks ``graph.json`` and that every array is there with the right dtype
            and shape. ``"full"`` also scans the values of topologies, labels and splits, in memory
            of 8 bytes a node and one bit an edge. Feature values are never scanned.

        Raises
        ------
        GraphError: something is missing or wrong. The text names file, field, expected and given.
        """
        if check not in ("full", "shapes"):
            raise ValueError(f"check: expected 'full' or 'shapes', given {check!r}")
        root = Path(path)
        if not root.is_dir():
            raise GraphError(f"{root}: not a directory")
        graph = cls(root, read_schema(root))
        arrays = {of: graph._map(*of) for of in graph._arrays}
        if check == "full":
            for relation in graph.schema.relations:
                check_topology(graph.topology(relation), relation, root)
            for of, spec in graph._arrays.items():
                check_array(graph.schema, *of, arrays[of], f"{root / spec.file}: {spec.name}")
        return graph

    @classmethod
    def from_pyg(
        cls, data: Any, out: str | Path, options: ImportOptions | None = None, name: str = "graph"
    ) -> GraphDirectory:
        """Write a PyG ``Data`` or ``HeteroData`` as a graph directory, and open it.

        This reads ``x``, ``y``, ``edge_index``, ``edge_attr`` and the masks ``<split>_mask``, and
        warns of other attributes. A ``Data`` becomes node type "node" and relation node/edge/node.

        Parameters
        ----------
        out: the folder to write; it must not exist or be empty.
        options: changes to make on the way: symmetrise, draw splits, ...

        Raises
        ------
        GraphError: an attribute has a wrong type, dtype or shape. The text names it.
        RequestError: an option does not fit the graph, or ``out`` cannot be written.
        """
        from hopper.graph.importers.pyg import tables_from_pyg

        return cls._from_tables(tables_from_pyg(data, name, name), out, options)

    @classmethod
    def from_dgl(
        cls, graph: Any, out: str | Path, options: ImportOptions | None = None, name: str = "graph"
    ) -> GraphDirectory:
        """Write a ``DGLGraph`` as a graph directory, and open it; see :meth:`from_pyg`.

        This reads ``feat`` and ``label`` of nodes, ``feat`` of edges, and the masks.
        """
        from hopper.graph.importers.dgl import tables_from_dgl

        return cls._from_tables(tables_from_dgl(graph, name, name), out, options)

    @classmethod
    def from_networkx(
        cls, graph: Any, out: str | Path, options: ImportOptions | None = None, name: str = "graph"
    ) -> GraphDirectory:
        """Write a ``networkx`` graph as a graph directory, and open it; see :meth:`from_pyg`.

        All nodes have one type. This reads the node attributes ``features`` (or single numbers),
        ``label`` and ``split``, and numbers of edges. An undirected edge becomes two.
        """
        from hopper.graph.importers.graphml import tables_from_networkx

        return cls._from_tables(tables_from_networkx(graph, name, name), out, options)

    @classmethod
    def from_arrays(
        cls,
        out: str | Path,
        edges: ArrayLike | Mapping[tuple[str, str, str], ArrayLike],
        features: ArrayLike | Mapping[str, ArrayLike] | None = None,
        labels: ArrayLike | Mapping[str | tuple[str, str, str], ArrayLike] | None = None,
        splits: Mapping[str, ArrayLike] | None = None,
        *,
        edge_features: ArrayLike | Mapping[tuple[str, str, str], ArrayLike] | None = None,
        edge_weights: ArrayLike | Mapping[tuple[str, str, str], ArrayLike] | None = None,
        times: ArrayLike | Mapping[str | tuple[str, str, str], ArrayLike] | None = None,
        counts: int | Mapping[str, int] | None = None,
        target: str | tuple[str, str, str] | Sequence[tuple[str, str, str]] = "",
        options: ImportOptions | None = None,
        name: str = "graph",
    ) -> GraphDirectory:
        """Write arrays or tensors as a graph directory, and open it; see :meth:`from_pyg`.

        An array stands for the only node type, "node", or the only relation, node/edge/node. A
        graph of several has mappings by node type or by (source type, relation, destination type).

        Parameters
        ----------
        edges: [2, edges] integers, sources first.
        features: [n, d] features of nodes.
        edge_features: [edges, d].
        edge_weights: [edges] positive numbers.
        times: [n] integers or dates of nodes; by relation, [edges] those of edges.
        labels: [n] integers (classes; negative = unlabelled), [n] texts (names of classes; None or
            "" = unlabelled), [n, c] of 0 and 1, or floats; by relation, those of edges.
        splits: ids or a mask by name, of nodes of the target type or of edges of the target
            relations, one relation after another.
        counts: numbers of nodes; by default those of features, labels or times, or else as many as
            edges name.
        target: the node type or the relation to predict, or several relations; by default the only
            node type with labels, or else the only relation.
        """
        from hopper.graph.importers.arrays import tables_from_arrays

        columns: dict[str, Any] = {"features": features, "labels": labels, "times": times}
        columns |= {"edge features": edge_features, "weights": edge_weights}
        tables = tables_from_arrays(name, edges, columns, splits, counts, target)
        return cls._from_tables(tables, out, options)

    @classmethod
    def from_sql(
        cls,
        out: str | Path,
        nodes: Mapping[str, Any],
        edges: Mapping[str, Any] | None = None,
        *,
        tables: Mapping[str, Any] | None = None,
        databases: Mapping[str, str] | None = None,
        options: ImportOptions | None = None,
        name: str = "graph",
    ) -> GraphDirectory:
        """Write what SQL queries return as a graph directory, and open it.

        docs/howto/import-sql.md says what they return. Queries are in DuckDB's SQL, which reads
        Parquet, CSV and JSON files, also at addresses of fsspec, or mappings
        ``{"database": name, "sql": query}`` in that of another database.

        Parameters
        ----------
        nodes: by node type, a query for its nodes.
        edges: by relation, as "src/rel/dst", a query for its edges.
        tables: by name, what queries may read beside files: a pandas, Polars or Arrow table, or a
            query.
        databases: by name, ``duckdb:PATH``, ``sqlite:PATH`` or ``postgresql://...``.

        Raises
        ------
        GraphError: a query cannot be run, or its result is unusable. The text names it.
        RequestError: an option does not fit, or ``out`` cannot be written.
        """
        from hopper.graph.importers import ImportOptions
        from hopper.graph.importers.sql import GraphQueries, import_sql

        values = {"nodes": nodes, "edges": edges or {}, "tables": tables or {}, "name": name}
        queries = GraphQueries.make(values | {"databases": databases or {}}, "from_sql")
        refuse_occupied(Path(out))
        for note in import_sql(queries, Path(out), options or ImportOptions()):
            warnings.warn(note, stacklevel=2)
        return cls.open(out, check="shapes")

    @classmethod
    def _from_tables(
        cls, tables: GraphTables, out: str | Path, options: ImportOptions | None
    ) -> GraphDirectory:
        from hopper.graph.importers import ImportOptions, write_tables

        for note in write_tables(tables, out, options or ImportOptions()):
            warnings.warn(note, stacklevel=3)
        return cls.open(out, check="shapes")

    def topology(self, relation: Relation) -> Topology:
        """Map the CSC of a relation, with original ids."""
        owner = Relation(*relation)
        if owner not in self.schema.relations:
            raise GraphError(f"{self.path}: no relation {owner}")
        arrays: dict[str, Any] = {name: self._map(name, owner) for name in layout.TOPOLOGY_ARRAYS}
        return Topology(**arrays)

    def file(self, part: str, owner: Labelled) -> Path:
        """Return the file of an array that :func:`hopper.graph.layout.graph_arrays` lists."""
        return self.path / self._spec(part, owner).file

    def features(self, owner: Labelled) -> NDArray[Any]:
        """Map the features of a type's nodes, or of a relation's edges by edge id, in their stored
        form: [count, columns]."""
        return self._map("features", owner if isinstance(owner, str) else Relation(*owner))

    def edge_weights(self, relation: Relation) -> NDArray[Any]:
        """Map the weights of a relation's edges, by edge id: [edges] float32; all are positive."""
        return self._map("weights", Relation(*relation))

    def times(self, owner: Labelled) -> NDArray[np.int64]:
        """Map the times of a type's nodes, or of a relation's edges by edge id: [count] int64."""
        return self._map("times", owner)

    def labels(self, owner: Labelled) -> NDArray[Any]:
        """Map the labels of a node type's nodes, or of a relation's edges by edge id.

        Returns
        -------
        By kind. ``class``: [count] int64 in [-1, classes), -1 for unlabelled. ``multi_hot``:
        [count, classes] uint8 of 0 and 1. ``float``: [count, classes] float32, or [count] if
        there is one class. ``tasks``: [count, columns] float32.
        """
        return self._map("labels", owner)

    def split(self, name: str) -> NDArray[np.int64]:
        """Map a split's ids of target nodes, or of target edges: [n] int64, ascending."""
        if name not in self.schema.splits:
            raise GraphError(
                f"{self.path}: split {name!r}: expected one of {sorted(self.schema.splits)}"
            )
        return self._map("split", name)

    def links(self, split: str) -> Links:
        """Read the ends of a split's edges, and their labels and times if they have any.

        This scans the topologies of the target relations.
        """
        schema = self.schema
        if not schema.target_relations:
            raise GraphError(f"{self.path}: nodes of {schema.target} are predicted, not links")
        counts = [schema.count_of(relation) for relation in schema.target_relations]
        # The id in splits of each relation's first edge.
        ids, offsets = np.asarray(self.split(split)), np.cumsum([0, *counts])
        relations = np.searchsorted(offsets, ids, side="right") - 1
        src, dst = np.empty(ids.size, np.int64), np.empty(ids.size, np.int64)
        labels = list[NDArray[Any]]()
        times = np.empty(ids.size, np.int64) if schema.links_are_timed else None
        for number, relation in enumerate(schema.target_relations):
            first, stop = np.searchsorted(ids, offsets[number : number + 2]).tolist()
            edge_ids = ids[first:stop] - offsets[number]
            if schema.predicted == "edge":
                labels.append(self.labels(relation)[edge_ids])
            if times is not None:
                times[first:stop] = self.times(relation)[edge_ids]
            if first == stop:
                continue
            edges, link_of = self.topology(relation), np.full(counts[number], -1)
            link_of[edge_ids] = np.arange(first, stop)
            for start, piece in iter_pieces(edges.edge_ids):
                found = np.flatnonzero(link_of[piece] >= 0)
                links = link_of[piece[found]]
                src[links] = edges.indices[start + found]
                dst[links] = np.searchsorted(edges.indptr, start + found, side="right") - 1
        return Links(ids, relations, src, dst, np.concatenate(labels) if labels else None, times)

    @cached_property
    def _arrays(self) -> dict[tuple[str, str], layout.ArraySpec]:
        return layout.graph_arrays(self.schema)

    def _spec(self, part: str, owner: Labelled) -> layout.ArraySpec:
        spec = self._arrays.get((part, str(owner)))
        if spec is None:
            what = "relation" if isinstance(owner, Relation) else "node type"
            raise GraphError(f"{self.path}: {what} {str(owner)!r} has no {part}")
        return spec

    def _map(self, part: str, owner: Labelled) -> NDArray[Any]:
        spec = self._spec(part, owner)
        return open_array(self.file(part, owner), spec.name, spec.dtypes, *spec.shapes)
