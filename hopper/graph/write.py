"""Write a graph directory, first into a temporary folder that is renamed when it is complete."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cache_server.store.npy import ID_DTYPES
from hopper.errors import GraphError
from hopper.graph import layout
from hopper.graph.array_file import array_bytes, create_array, name_in_errors, save_array
from hopper.graph.check_values import check_array, find_not_ascending, find_outside
from hopper.graph.columns import FeatureColumn
from hopper.graph.publish import atomic_output_dir
from hopper.graph.schema import GraphSchema, Labelled, Relation
from hopper.graph.schema_json import check_schema, write_schema
from hopper.graph.topology import EdgeEnds, SortEdges, Topology, fill_topology


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
        check_schema(schema, str(self.out / layout.SCHEMA_FILE))
        self._arrays = layout.graph_arrays(schema)
        self._missing = set(self._arrays)
        self._publication = ExitStack()

    def __enter__(self) -> GraphWriter:
        folder = atomic_output_dir(self.out, required_bytes(self.schema))
        self._work = self._publication.enter_context(folder)
        return self

    def __exit__(self, *error: Any) -> None:
        if error[0] is not None:
            self._publication.__exit__(*error)
            return
        with self._publication:
            if self._missing:
                missing = {
                    f"{'topology' if part in layout.TOPOLOGY_ARRAYS else part} of {owner}"
                    for part, owner in self._missing
                }
                raise GraphError(
                    f"{self.out}: not written, though in the schema: {', '.join(sorted(missing))}"
                )
            write_schema(self._work, self.schema)

    def topology(
        self, relation: Relation, src: EdgeEnds, dst: EdgeEnds, sort: SortEdges | None = None
    ) -> None:
        """Build and write a relation's CSC from its edge list, straight into the files.

        Parameters
        ----------
        src, dst: [edges] int32 or int64, the ends of edge 0, 1, ...; an edge's id is its index.
        sort: sorts edges that memory does not hold; None = sort in memory.
        """
        files = self._create_topology(relation, src.size)
        fill_topology(src, dst, files, sort, f"edges of {'/'.join(relation)}")

    def topology_csc(self, relation: Relation, topology: Topology) -> None:
        """Write a relation's CSC that is already built; its values are checked at opening."""
        files = self._create_topology(relation, topology.indices.size)
        for name in layout.TOPOLOGY_ARRAYS:
            source, target = getattr(topology, name), getattr(files, name)
            if source.shape != target.shape or source.dtype not in ID_DTYPES:
                raise GraphError(
                    f"{self.out}: {name} of {relation}: expected int32 or int64 of shape "
                    f"{list(target.shape)}, given {source.dtype} of shape {list(source.shape)}"
                )
            if target.dtype == np.int32 and find_outside(source, 0, 1 << 31) >= 0:
                raise GraphError(f"{self.out}: {name} of {relation}: expected ids below 2^31")
            target[...] = source

    def features(self, owner: Labelled) -> NDArray[Any]:
        """Create the features of a type's nodes, or of a relation's edges by edge id: zeros to be
        filled, [count, feature_dim]."""
        return self._create("features", owner)

    def times(self, owner: Labelled, times: NDArray[Any]) -> None:
        """Write the times of a node type's nodes, or of a relation's edges.

        They are [count] int64, those of edges in order of edge id.
        """
        self._save("times", owner, times)

    def edge_weights(self, relation: Relation, weights: NDArray[Any]) -> None:
        """Write the weights of a relation's edges: [edges] float32, positive, by edge id."""
        self._save("weights", relation, weights)

    def labels(self, owner: Labelled, values: NDArray[Any]) -> None:
        """Write the labels of a node type's nodes, or of a relation's edges by edge id.

        Dtype and shape are those of :meth:`GraphDirectory.labels`.
        """
        self._save("labels", owner, values)

    def split(self, name: str, ids: NDArray[np.integer[Any]]) -> None:
        """Write a split: distinct ids of target nodes or edges, in any order; stored ascending."""
        if ids.dtype.kind in "iu" and (ids.dtype != np.int64 or find_not_ascending(ids) >= 0):
            ids = np.sort(ids.astype(np.int64))
        self._save("split", name, ids)

    def names(self, node_type: str, names: Sequence[str]) -> None:
        """Write the source's names of a type's nodes, which predictions show, one line a node."""
        kind = self.schema.node_types.get(node_type)
        if kind is None or len(names) != kind.count:
            expected = "expected one for each of the nodes of the schema"
            raise GraphError(f"{self.out}: names of {node_type}: {expected}, given {len(names)}")
        self._write_names(layout.names_file(self._work, node_type), names, f"names of {node_type}")

    def servers(self, node_type: str, servers: NDArray[np.int32]) -> None:
        """Write [count] int32, the servers that a type's nodes are given to, by original id."""
        file = layout.servers_file(self._work, node_type)
        file.parent.mkdir(exist_ok=True)
        np.save(file, servers)

    def label_names(self, owner: Labelled, names: Sequence[str], task: str = "") -> None:
        """Write the source's names of classes, of a task if there are several, one line a class."""
        file = layout.label_names_file(self._work, owner, task)
        self._write_names(file, names, f"names of classes of {owner}")

    def columns(self, owner: Labelled, columns: Sequence[FeatureColumn]) -> None:
        """Add the columns of the features of a node type or a relation to the schema."""
        field = "relations" if isinstance(owner, Relation) else "node_types"
        kinds: dict[Any, Any] = dict(getattr(self.schema, field))
        kinds[owner] = replace(kinds[owner], columns=tuple(columns))
        changed: dict[str, Any] = {field: kinds}
        self.schema = replace(self.schema, **changed)

    def _write_names(self, file: Path, names: Sequence[str], what: str) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with name_in_errors(file), file.open("w", encoding="utf-8") as stream:
            for row, name in enumerate(names):
                if "\n" in name or "\r" in name:
                    raise GraphError(
                        f"{self.out}: {what}: row {row}: expected one line, given {name!r}"
                    )
                stream.write(f"{name}\n")

    def _create_topology(self, relation: Relation, edges: int) -> Topology:
        name = "/".join(relation)
        count = self._spec("indices", name, "topology").shapes[0][0]
        if edges != count:
            raise GraphError(
                f"{self.out}: topology of {name}: expected {count} edges, given {edges}"
            )
        files: list[Any] = [self._create(array, name) for array in layout.TOPOLOGY_ARRAYS]
        return Topology(*files)

    def _spec(self, part: str, owner: object, what: str = "") -> layout.ArraySpec:
        spec = self._arrays.get((part, str(owner)))
        if spec is None:
            raise GraphError(f"{self.out}: {what or part}: the schema has none for {str(owner)!r}")
        return spec

    def _create(self, part: str, owner: object) -> NDArray[Any]:
        """Create an array of the schema, to be filled by the caller."""
        spec = self._spec(part, owner)
        self._missing.discard((part, str(owner)))
        return create_array(self._work / spec.file, spec.dtypes[0], spec.shapes[0])

    def _save(self, part: str, owner: object, array: NDArray[Any]) -> None:
        """Check an array's dtype, shape and values, and write it."""
        spec = self._spec(part, owner)
        where = f"{self.out}: {spec.name}"
        if array.dtype not in spec.dtypes or array.shape not in spec.shapes:
            shapes = " or ".join(str(list(shape)) for shape in spec.shapes)
            raise GraphError(
                f"{where}: expected {spec.dtypes[0]} of shape {shapes}, given {array.dtype} of "
                f"shape {list(array.shape)}"
            )
        check_array(self.schema, part, owner, array, where)
        save_array(self._work / spec.file, array)
        self._missing.discard((part, str(owner)))


def required_bytes(schema: GraphSchema) -> int:
    """Return the bytes on disk of a graph directory with this schema, without ``graph.json``."""
    specs = layout.graph_arrays(schema).values()
    return sum(array_bytes(spec.dtypes[0], spec.shapes[-1]) for spec in specs)
