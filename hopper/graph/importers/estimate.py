"""What an import of tables will need, said before the work, and what an option needs whole."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from hopper.errors import RequestError
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
_SORTED: Final = 40
"""bytes of an edge that the engine sorts on disk"""
_SYMMETRIZED: Final = 96
"""bytes of memory an edge: keys there and back, sorted, and what becomes of them"""
_COMPONENT_EDGE: Final = 60
_COMPONENT_NODE: Final = 24
_DRAWN: Final = 40
"""bytes of memory a node or an edge that splits are drawn from"""


def estimate_disk(
    nodes: Mapping[str, TableFile], edges: Mapping[Relation, TableFile], *, reverse: bool
) -> int:
    """Bytes, about, that an import takes on the disk of its destination while it works."""
    total = sum(_NODE * table.estimate_rows() + _columns(table) for table in nodes.values())
    rows = [table.estimate_rows() for table in edges.values()]
    # Both directions are written, and one after the other sorted.
    total += sum(rows) * (_KEPT + _EDGE * (2 if reverse else 1)) + _SORTED * max(rows, default=0)
    return total + sum(map(_columns, edges.values()))


def tell_estimate(out: Path, needed: int, space: Workspace) -> str:
    """One line on memory and disk.

    Raises
    ------
    RequestError: the disk has too little space; names both numbers.
    """
    free = shutil.disk_usage(space.folder).free
    if needed > free:
        raise RequestError(
            f"{out.absolute().parent}: too little disk space: about {needed / 2**30:.2f} GiB "
            f"needed for the graph and what is spilled, {free / 2**30:.2f} GiB available"
        )
    return (
        f"memory: at most {space.limit / 2**30:.2f} GiB (--memory-limit); disk: about "
        f"{needed / 2**30:.2f} GiB while it works, {free / 2**30:.2f} GiB available"
    )


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
    """Bytes of a table's columns besides its first ones: 8 of a number, kept and written."""
    given = [name for name in table.names if name not in ("id", "src", "dst")]
    return 8 * len(given) * table.estimate_rows()
