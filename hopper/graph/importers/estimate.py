"""Estimate the disk space, time and memory of an import of tables before it starts."""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hopper.errors import RequestError
from hopper.graph.importers.node_ids import are_rows
from hopper.graph.importers.table_file import TableFile
from hopper.graph.importers.tables import GraphTables, target_relations
from hopper.graph.importers.workspace import Workspace
from hopper.graph.schema import Labelled, Relation

if TYPE_CHECKING:
    from hopper.graph.importers.convert import ImportOptions

_EDGE: Final = 16
"""bytes of an edge in the graph: source and id"""
_NODE: Final = 32
"""bytes of a node in the graph: both degrees, a bound, and its id"""
_ENDS: Final = 16
"""bytes of an edge's ends while tables are read"""
_SORTED: Final = 24
"""bytes of an edge that the engine sorts on disk"""
_JOINED: Final = 40
"""bytes of an edge whose ids the engine joins on disk, without their texts"""
_SAMPLE: Final = 1 << 20
"""edges from which the time is estimated"""
_SYMMETRIZED: Final = 96
"""bytes of memory an edge while it is symmetrised: keys in both directions, sorted, and results"""
_COMPONENT_EDGE: Final = 60
_COMPONENT_NODE: Final = 24
_DRAWN: Final = 40
"""bytes of memory for each node or edge that splits are drawn from"""


@dataclass(frozen=True)
class Estimate:
    """A rough estimate of what an import will take.

    Attributes
    ----------
    disk: bytes on the destination's disk during the import.
    seconds: time of reading and sorting, without features; None = there are too few edges to tell.
    """

    disk: int
    seconds: float | None

    def tell(self, out: Path, space: Workspace) -> str:
        """Describe memory, disk space and time in one line.

        Raises
        ------
        RequestError: the disk has too little space. The text has both numbers.
        """
        free = shutil.disk_usage(space.folder).free
        if self.disk > free:
            raise RequestError(
                f"{out.absolute().parent}: too little disk space: about {self.disk / 2**30:.2f} "
                f"GiB needed for the graph and what is spilled, {free / 2**30:.2f} GiB available"
            )
        line = (
            f"memory: at most {space.limit / 2**30:.2f} GiB (--memory-limit); disk: about "
            f"{self.disk / 2**30:.2f} GiB while it works, {free / 2**30:.2f} GiB available"
        )
        if self.seconds is None:
            return line
        return f"{line}; time: about {self.seconds:.0f} s to read and sort, by {_SAMPLE:,} edges"


def estimate_import(
    nodes: Mapping[str, TableFile],
    edges: Mapping[Relation, TableFile],
    space: Workspace,
    *,
    both_ways: bool,
) -> Estimate:
    """Estimate disk space from the sizes of tables, and time by reading and sorting some rows.

    Parameters
    ----------
    both_ways: whether reverses of edges are written as well.
    """
    rows = {relation: table.estimate_rows() for relation, table in edges.items()}
    copies = 2 if both_ways else 1
    numbered = {name for name, table in nodes.items() if _begins_with_rows(table)}
    joined = {relation for relation in edges if not {relation.src, relation.dst} <= numbered}
    disk = sum(_NODE * table.estimate_rows() + _column_bytes(table) for table in nodes.values())
    disk += sum(
        2 * table.file.stat().st_size for name, table in nodes.items() if name not in numbered
    )
    disk += sum(rows.values()) * (_ENDS + _EDGE * copies)
    disk += (1 + copies) * sum(map(_column_bytes, edges.values()))
    # Both directions are written, but the engine sorts or joins one relation at a time.
    joins = [
        _JOINED * rows[relation] + 2 * edges[relation].file.stat().st_size for relation in joined
    ]
    disk += max([_SORTED * max(rows.values(), default=0), *joins])
    if max(rows.values(), default=0) < 4 * _SAMPLE:
        return Estimate(disk, None)
    passes = sum(rows[relation] * (3 if relation in joined else 1) for relation in edges)
    largest = edges[max(rows, key=lambda relation: rows[relation])]
    # Sorting n edges takes a time proportional to n log n.
    slowdown = math.log(max(rows.values())) / math.log(_SAMPLE)
    seconds = sum(rows.values()) * _time_to_read(largest)
    return Estimate(disk, seconds + passes * copies * slowdown * _time_to_sort(space))


def _begins_with_rows(table: TableFile) -> bool:
    if "id" not in table.names:
        # The reader of the table refuses it.
        return True
    for first, batch in table.batches(["id"]):
        return are_rows(table.ids(batch, "id", first), table.texts_count)
    return True


def _time_to_read(table: TableFile) -> float:
    """Return the seconds an edge, measured on the first edges of a table."""
    start, rows = time.perf_counter(), 0
    for _, batch in table.batches([name for name in table.names if name in ("src", "dst")]):
        rows += batch.num_rows
        if rows >= _SAMPLE:
            break
    return (time.perf_counter() - start) / max(1, rows)


def _time_to_sort(space: Workspace) -> float:
    """Return the seconds an edge, measured on random edges."""
    ends = np.random.default_rng(0).integers(0, _SAMPLE, (2, _SAMPLE), np.int32)
    start = time.perf_counter()
    for _ in space.engine.sort_edges(ends[0], ends[1], "edges"):
        pass
    return (time.perf_counter() - start) / _SAMPLE


def require_memory(tables: GraphTables, options: ImportOptions, space: Workspace) -> None:
    """Check that memory holds the whole arrays that some options need.

    Raises
    ------
    RequestError: it does not. The text names the option, and has both numbers.
    """
    edges = {relation: src.size for relation, (src, _) in tables.edges.items()}
    nodes = sum(tables.counts.values())
    if options.largest_component:
        nbytes = _COMPONENT_EDGE * sum(edges.values()) + _COMPONENT_NODE * nodes
        nbytes += sum(80 * len(names) for names in tables.names.values())
        space.require(nbytes, "--largest-component")
    if options.symmetrize or options.add_reverse == "cross-type":
        within = [relation for relation in edges if relation.src == relation.dst]
        sizes = [
            edges[relation] * (_SYMMETRIZED + _feature_bytes(tables, relation))
            for relation in within
        ]
        space.require(max(sizes, default=0), "--symmetrize")
    if options.split is not None:
        owners: Iterable[Labelled] = target_relations(tables) or [tables.target]
        drawn = sum(edges[o] if isinstance(o, Relation) else tables.counts[o] for o in owners)
        space.require(_DRAWN * drawn, "--split")
    if any(labels.kind == "tasks" for labels, _ in tables.labels.values()):
        sizes = [values.nbytes for _, values in tables.labels.values()]
        space.require(2 * max(sizes), "labels of several tasks")


def _feature_bytes(tables: GraphTables, relation: Relation) -> int:
    """Return the bytes of memory that an edge's features take while it is symmetrised."""
    features: Any = tables.edge_features.get(relation)
    return 0 if features is None else 8 * int(features.shape[1])


def _column_bytes(table: TableFile) -> int:
    """Return the bytes of a table's columns other than ids: 8 a number, or the file's size if that
    is more.

    The file's size counts where columns hold lists.
    """
    names = [name for name in table.names if name not in ("id", "src", "dst")]
    size = table.file.stat().st_size if names else 0
    return max(size, 8 * len(names) * table.estimate_rows())
