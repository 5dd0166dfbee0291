"""What an import of tables will need, said before the work, and what an option needs whole."""

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
"""bytes of a node in the graph: a degree each way, a bound, and what stands for its id"""
_KEPT: Final = 16
"""bytes of an edge that is kept while tables are read: both its ends"""
_SORTED: Final = 24
"""bytes of an edge that the engine sorts on disk"""
_JOINED: Final = 40
"""bytes of an edge whose ids the engine joins on disk, beside their texts"""
_SAMPLE: Final = 1 << 20
"""edges whose rate tells of all"""
_SYMMETRIZED: Final = 96
"""bytes of memory an edge: keys there and back, sorted, and what becomes of them"""
_COMPONENT_EDGE: Final = 60
_COMPONENT_NODE: Final = 24
_DRAWN: Final = 40
"""bytes of memory a node or an edge that splits are drawn from"""


@dataclass(frozen=True)
class Estimate:
    """What an import will take, about.

    Attributes
    ----------
    disk: bytes of the destination's disk, while it works.
    seconds: of reading and sorting, features apart; None = too few edges to say.
    """

    disk: int
    seconds: float | None

    def tell(self, out: Path, space: Workspace) -> str:
        """One line on memory, disk and time.

        Raises
        ------
        RequestError: the disk has too little space; names both numbers.
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
    """From the sizes of tables, and the rate at which a few rows are read and sorted.

    Parameters
    ----------
    both_ways: reverses of edges are written as well.
    """
    rows = {relation: table.estimate_rows() for relation, table in edges.items()}
    copies = 2 if both_ways else 1
    numbered = {name for name, table in nodes.items() if _begins_with_rows(table)}
    joined = {each for each in edges if not {each.src, each.dst} <= numbered}
    disk = sum(_NODE * table.estimate_rows() + _columns(table) for table in nodes.values())
    disk += sum(
        2 * table.file.stat().st_size for name, table in nodes.items() if name not in numbered
    )
    disk += sum(rows.values()) * (_KEPT + _EDGE * copies)
    disk += (1 + copies) * sum(map(_columns, edges.values()))
    # Both directions are written, and one after the other sorted; so are ids that are joined.
    joins = [_JOINED * rows[each] + 2 * edges[each].file.stat().st_size for each in joined]
    disk += max([_SORTED * max(rows.values(), default=0), *joins])
    if max(rows.values(), default=0) < 4 * _SAMPLE:
        return Estimate(disk, None)
    passes = sum(rows[each] * (3 if each in joined else 1) for each in edges)
    largest = edges[max(rows, key=lambda each: rows[each])]
    longer = math.log(max(rows.values())) / math.log(_SAMPLE)
    seconds = sum(rows.values()) * _time_to_read(largest)
    return Estimate(disk, seconds + passes * copies * longer * _time_to_sort(space))


def _begins_with_rows(table: TableFile) -> bool:
    if "id" not in table.names:
        # Refused when it is read.
        return True
    for first, batch in table.batches(["id"]):
        return are_rows(table.ids(batch, "id", first), table.texts_count)
    return True


def _time_to_read(table: TableFile) -> float:
    """Seconds an edge, from the first of a table."""
    start, rows = time.perf_counter(), 0
    for _, batch in table.batches([name for name in table.names if name in ("src", "dst")]):
        rows += batch.num_rows
        if rows >= _SAMPLE:
            break
    return (time.perf_counter() - start) / max(1, rows)


def _time_to_sort(space: Workspace) -> float:
    """Seconds an edge, from a few that are drawn."""
    ends = np.random.default_rng(0).integers(0, _SAMPLE, (2, _SAMPLE), np.int32)
    start = time.perf_counter()
    for _ in space.engine.sort_edges(ends[0], ends[1], "edges"):
        pass
    return (time.perf_counter() - start) / _SAMPLE


def require_memory(tables: GraphTables, options: ImportOptions, space: Workspace) -> None:
    """Refuse options that need whole arrays which memory does not hold.

    Raises
    ------
    RequestError: naming the option, and both numbers.
    """
    edges = {relation: src.size for relation, (src, _) in tables.edges.items()}
    nodes = sum(tables.counts.values())
    if options.largest_component:
        needed = _COMPONENT_EDGE * sum(edges.values()) + _COMPONENT_NODE * nodes
        needed += sum(80 * len(names) for names in tables.names.values())
        space.require(needed, "--largest-component")
    if options.symmetrize or options.add_reverse == "cross-type":
        within = [relation for relation in edges if relation.src == relation.dst]
        sizes = [edges[each] * (_SYMMETRIZED + _attributes(tables, each)) for each in within]
        space.require(max(sizes, default=0), "--symmetrize")
    if options.split is not None:
        owners: Iterable[Labelled] = target_relations(tables) or [tables.target]
        drawn = sum(edges[o] if isinstance(o, Relation) else tables.counts[o] for o in owners)
        space.require(_DRAWN * drawn, "--split")
    if any(labels.kind == "tasks" for labels, _ in tables.labels.values()):
        sizes = [values.nbytes for _, values in tables.labels.values()]
        space.require(2 * max(sizes), "labels of several tasks")


def _attributes(tables: GraphTables, relation: Relation) -> int:
    """Bytes of memory an edge has when it is symmetrised, beside its ends."""
    features: Any = tables.edge_features.get(relation)
    return 0 if features is None else 8 * int(features.shape[1])


def _columns(table: TableFile) -> int:
    """Bytes of a table's columns besides its first ones: 8 of a number, kept and written, or the
    file's own, where a column holds lists."""
    given = [name for name in table.names if name not in ("id", "src", "dst")]
    size = table.file.stat().st_size if given else 0
    return max(size, 8 * len(given) * table.estimate_rows())
