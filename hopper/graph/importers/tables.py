"""A graph as an importer reads it: one table for each node type and for each relation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.array_file import iter_pieces
from hopper.graph.columns import FeatureColumn
from hopper.graph.layout import safe_name
from hopper.graph.schema import Labelled, Labels, Relation

CHUNK_BYTES = 64 << 20
_MOST_TOLD: Final = 20
"""Number of problems that are told; the others are counted."""
_T = TypeVar("_T")


class Problems(dict[tuple[str, str], str]):
    """What is wrong with a source: one text for each field of it, so that one import tells all."""

    def add(self, place: object, field: str, text: str) -> None:
        """Keep what is wrong with a field, unless something is already."""
        self.setdefault((str(place), field), text)

    def attempt(
        self, place: object, field: str, step: Callable[..., _T], *arguments: Any
    ) -> _T | None:
        """Take a step of reading a field, unless an earlier one failed; None if it fails."""
        if not self.has_failed(place, field):
            try:
                return step(*arguments)
            except GraphError as error:
                self.add(place, field, str(error))
        return None

    def has_failed(self, place: object, field: str) -> bool:
        """Return whether anything is wrong with a field."""
        return (str(place), field) in self

    def raise_all(self) -> None:
        """Raise what was kept, if anything was."""
        first, *others = dict.fromkeys(self.values()) or [""]
        if others:
            count = 1 + len(others)
            more = [f"and {count - _MOST_TOLD:,} more"] if count > _MOST_TOLD else []
            lines = [f"{count:,} problems with the source:", first, *others[: _MOST_TOLD - 1]]
            raise GraphError("\n  ".join([*lines, *more]))
        if first:
            raise GraphError(first)


@dataclass(frozen=True)
class Features:
    """Features that are read from the first to the last row, in chunks of bounded size."""

    shape: tuple[int, int]
    dtype: np.dtype[Any]
    chunks: Callable[[], Iterator[tuple[int, NDArray[Any]]]]
    """iterates over all rows in pairs of a first row and the rows [n, columns] from there on"""


def array_features(*arrays: Any) -> Features:
    """Return the features of arrays side by side, in dense chunks of at most 64 MiB; they may be
    maps or SciPy CSR matrices."""
    rows, columns = arrays[0].shape[0], sum(array.shape[1] for array in arrays)
    dtype = np.result_type(*{array.dtype for array in arrays})

    def chunks() -> Iterator[tuple[int, NDArray[Any]]]:
        step = max(1, CHUNK_BYTES // max(1, columns * dtype.itemsize))
        for start in range(0, rows, step):
            parts = [array[start : start + step] for array in arrays]
            dense = [part.toarray() if hasattr(part, "toarray") else part for part in parts]
            yield start, np.asarray(dense[0]) if len(dense) == 1 else np.hstack(dense, dtype=dtype)

    return Features((int(rows), int(columns)), dtype, chunks)


@dataclass
class Table:
    """The nodes of a type, or the edges of a relation, by row; None = it has no such column."""

    count: int
    src: Any = None
    """[count] int32 or int64, rows of the source type's table; None for nodes"""
    dst: Any = None
    features: Features | None = None
    columns: Sequence[FeatureColumn] = ()
    """the source's columns of the features, if they have names"""
    labels: tuple[Labels, NDArray[Any]] | None = None
    classes: dict[str, list[str]] = field(default_factory=dict)
    """the source's names of classes by task, unless it numbers them; the only task's name is ''"""
    times: NDArray[np.int64] | None = None
    weights: NDArray[np.float32] | None = None
    splits: dict[str, NDArray[Any]] | None = None
    """rows by split"""
    names: Sequence[str] | None = None
    """the source's names of nodes, unless it numbers them"""
    servers: NDArray[np.int32] | None = None
    """the servers of nodes that the source was divided over"""

    @property
    def feature_columns(self) -> Sequence[FeatureColumn]:
        """The columns of the features; those of a matrix are one without a name."""
        width = self.features.shape[1] if self.features is not None else 0
        return self.columns or (FeatureColumn("", numbers=width),)

    def extend(self, rows: NDArray[np.int64]) -> Table:
        """Return the table with copies of some rows appended; it holds its features in memory."""
        rows = np.concatenate((np.arange(self.count), rows))
        arrays = {name: getattr(self, name) for name in ("src", "dst", "times", "weights")}
        taken = {name: array[rows] for name, array in arrays.items() if array is not None}
        if self.labels is not None:
            taken["labels"] = self.labels[0], self.labels[1][rows]
        if self.features is not None:
            chunks = np.concatenate([chunk for _, chunk in self.features.chunks()])
            taken["features"] = array_features(chunks[rows])
        return replace(self, count=rows.size, **taken)


@dataclass
class GraphTables:
    """A graph as an importer read it."""

    name: str
    source: str
    nodes: dict[str, Table] = field(default_factory=dict)
    edges: dict[Relation, Table] = field(default_factory=dict)
    targets: tuple[Labelled, ...] = ()
    """what is predicted: a node type, or relations"""
    notes: list[str] = field(default_factory=list)
    """notes for the user on how the source was read"""
    problems: Problems = field(default_factory=Problems)
    """what is wrong with the source, which refuses it before anything is written"""

    @property
    def all(self) -> dict[Labelled, Table]:
        """The tables of all node types and relations."""
        return dict([*self.nodes.items(), *self.edges.items()])

    @property
    def target_relations(self) -> list[Relation]:
        """The relations whose edges are predicted; empty where nodes are predicted."""
        return [target for target in self.targets if isinstance(target, Relation)]

    @property
    def target_tables(self) -> list[Table]:
        """The tables of what is predicted."""
        tables = self.all
        return [tables[target] for target in self.targets if target in tables]

    def choose_target(self, where: str, follows: bool = False) -> None:
        """Choose what is predicted: the node type or relations with splits, else those with labels,
        else the only node type. What is unclear is refused, unless a target follows from an option.
        """
        tables = self.all
        labelled = [owner for owner, table in tables.items() if table.labels is not None]
        candidates = (
            [owner for owner, table in tables.items() if table.splits is not None]
            or [owner for owner in labelled if isinstance(owner, str)]
            or labelled
            or list(self.nodes)
        )
        relations = [owner for owner in candidates if isinstance(owner, Relation)]
        if len(candidates) != 1 and (not relations or len(relations) < len(candidates)):
            if not follows:
                raise GraphError(
                    f"{where}: target: expected splits or labels of one node type, or of relations "
                    "(those of a table can be chosen by --target RELATION), given "
                    f"{', '.join(map(str, candidates)) or 'none'}"
                )
            candidates = [*relations, *candidates][:1]
        self.targets = tuple(candidates)

    def join_splits(self) -> dict[str, NDArray[Any]]:
        """Return ids by split; they number the rows of all targets, one after another."""
        first, joined = 0, dict[str, list[NDArray[Any]]]()
        for table in self.target_tables:
            for name, ids in (table.splits or {}).items():
                joined.setdefault(name, []).append(ids + first if first else ids)
            first += table.count
        return {n: ids[0] if len(ids) == 1 else np.concatenate(ids) for n, ids in joined.items()}

    def divide_splits(self, splits: Mapping[str, NDArray[Any]]) -> None:
        """Give the targets splits of ids that number the rows of all, one after another.

        An id that no row has is a problem of the source.
        """
        tables = self.target_tables
        for table in tables:
            table.splits = {}
        if not tables or any(table.count < 0 for table in tables):
            # Later checks refuse the target or the count, and name it.
            return
        firsts = np.cumsum([0, *(table.count for table in tables)]).tolist()
        for name, ids in splits.items():
            are_ids = ids.ndim == 1 and ids.dtype.kind in "iu"
            low, high = (int(ids.min()), int(ids.max())) if are_ids and ids.size else (0, -1)
            if not are_ids:
                wrong = f"integers of shape [n], given {ids.dtype} of shape {list(ids.shape)}"
            elif not 0 <= low <= high + 1 <= firsts[-1]:
                what = "edges" if self.target_relations else "nodes"
                owners = ", ".join(map(str, self.targets))
                wrong = f"ids of {what} of {owners} in [0, {firsts[-1]}), given {low} to {high}"
            else:
                for table, first in zip(tables, firsts, strict=False):
                    is_own = (ids >= first) & (ids < first + table.count)
                    assert table.splits is not None
                    table.splits[name] = ids if len(tables) == 1 else ids[is_own] - first
                continue
            self.problems.add(name, "split", f"split {name}: expected {wrong}")


def read_relation(
    triple: Sequence[str], taken: Mapping[Any, Any], where: str, end: str = ""
) -> Relation:
    """Make a relation's names safe for paths, and check that it is not in ``taken``, and that its
    node types are, as what ``end`` names if that is given."""
    relation = Relation(*map(safe_name, triple))
    if relation in taken:
        raise GraphError(
            f"{where}: relation {tuple(triple)}: expected distinct names once other characters "
            f"are replaced by _, given {relation} twice"
        )
    for node_type in (relation.src, relation.dst):
        if end and node_type not in taken:
            raise GraphError(f"{where}: expected {end.format(node_type)}, given none")
    return relation


def count_nodes(tables: GraphTables, node_type: str) -> int:
    """Return one more than the largest id of a type that any edge names."""
    ends = [
        ids
        for relation, table in tables.edges.items()
        for end, ids in ((relation.src, table.src), (relation.dst, table.dst))
        if end == node_type and ids.size
    ]
    return max((int(piece.max()) + 1 for ids in ends for _, piece in iter_pieces(ids)), default=0)
