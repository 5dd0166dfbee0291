"""The schema of a graph directory: what ``graph.json`` says, as typed values.

A homogeneous graph is one node type and one relation; there is no second code path for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from cache_server.row_form import RowFormName
from hopper.graph.row_form import RoundingError

SCHEMA_VERSION = 1

LabelKind = Literal["class", "multi_hot", "float", "tasks"]
Predicted = Literal["node", "edge", "link"]
"""labels of nodes, labels of edges, or which nodes an edge joins"""
TargetKind = Literal["class", "multi_hot", "float", "tasks", "link"]
"""what is predicted: labels of a kind, or links"""


class Relation(NamedTuple):
    """A canonical edge type: source node type, name, destination node type."""

    src: str
    rel: str
    dst: str

    def __str__(self) -> str:
        return f"{self.src}/{self.rel}/{self.dst}"

    def draw_key(self) -> int:
        """The 64-bit key of this relation in the counter-based draw (docs/draws.md)."""
        text = "\0".join(self).encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")


Labelled = str | Relation
"""whose labels: a node type's nodes, or a relation's edges"""


def relations_called(word: str, relations: Iterable[Relation]) -> list[Relation]:
    """The relations that a word means: ``src/name/dst``, or a name."""
    return [each for each in relations if word in (str(each), each.rel)]


@dataclass(frozen=True)
class NodeType:
    """One node type: how many nodes, the width and stored form of their features if any and how far
    these are from what they were made of (None = not at all), and whether they have times."""

    count: int
    feature_dim: int | None = None
    feature_dtype: RowFormName | None = None
    timed: bool = False
    feature_error: RoundingError | None = None


@dataclass(frozen=True)
class EdgeType:
    """One relation: how many edges, as of :class:`NodeType` their features, and whether they have
    weights, and times."""

    count: int
    feature_dim: int | None = None
    feature_dtype: RowFormName | None = None
    weighted: bool = False
    timed: bool = False
    feature_error: RoundingError | None = None


@dataclass(frozen=True)
class Labels:
    """Labels of a node type's nodes, or a relation's edges: int64 classes (-1 unlabelled), uint8
    multi-hot or float32 rows; or those of several tasks, side by side in float32 rows.

    ``classes`` is the width of logits, of all tasks together; ``tasks`` are by name, in order.
    """

    kind: LabelKind
    classes: int
    tasks: tuple[tuple[str, Labels], ...] = ()

    @property
    def columns(self) -> int:
        """How many numbers a row of labels has."""
        if self.kind == "tasks":
            return sum(own.columns for _, own in self.tasks)
        return 1 if self.kind == "class" else self.classes

    @property
    def dtype(self) -> str:
        """Of the numbers."""
        return {"class": "int64", "multi_hot": "uint8"}.get(self.kind, "float32")

    def places(self) -> dict[str, tuple[Labels, slice, slice]]:
        """By task, its labels, and which logits and columns are its own."""
        found, logit, column = {}, 0, 0
        for name, own in self.tasks:
            logits = slice(logit, logit + own.classes)
            found[name] = own, logits, slice(column, column + own.columns)
            logit, column = logits.stop, column + own.columns
        return found


@dataclass(frozen=True)
class GraphSchema:
    """Everything ``graph.json`` holds.

    ``target`` is the node type that is predicted, or the relation whose edges are, ``also`` further
    relations whose edges are predicted together with these: their labels where they have some,
    otherwise that they are there. ``splits`` maps a split's name to its number of ids.
    """

    name: str
    node_types: dict[str, NodeType]
    relations: dict[Relation, EdgeType]
    target: str | Relation
    labels: dict[Labelled, Labels] = field(default_factory=dict)
    splits: dict[str, int] = field(default_factory=dict)
    source: str = ""
    also: tuple[Relation, ...] = ()

    @property
    def target_relations(self) -> tuple[Relation, ...]:
        """The relations whose edges are predicted; none where nodes are."""
        return () if isinstance(self.target, str) else (self.target, *self.also)

    def table(self, name: str) -> NodeType | EdgeType:
        """What has the rows of a feature table: a node type, or the relation whose edges' features
        they are, as ``src/rel/dst``.

        Raises
        ------
        KeyError: there is neither.
        """
        if name in self.node_types:
            return self.node_types[name]
        return self.relations[Relation(*name.split("/"))]

    @property
    def timed(self) -> list[Labelled]:
        """The node types and relations with times."""
        kinds: list[tuple[Labelled, NodeType | EdgeType]] = [*self.node_types.items()]
        kinds += self.relations.items()
        return [owner for owner, kind in kinds if kind.timed]

    @property
    def links_are_timed(self) -> bool:
        """Whether edges of all target relations, where there are any, have times."""
        kinds = [self.relations[each] for each in self.target_relations]
        return bool(kinds) and all(each.timed for each in kinds)

    def is_timed(self, relation: Relation) -> bool:
        """Whether there is a time from which on an edge may be seen: its own, or its source's."""
        return self.relations[relation].timed or self.node_types[relation.src].timed

    def count_of(self, owner: Labelled) -> int:
        """How many nodes a type, or edges a relation, has."""
        if isinstance(owner, Relation):
            return self.relations[owner].count
        return self.node_types[owner].count

    @property
    def predicted(self) -> Predicted:
        """What the target is."""
        if isinstance(self.target, str):
            return "node"
        return "edge" if self.target in self.labels else "link"

    @property
    def target_labels(self) -> Labels | None:
        """The labels of what is predicted, those of all target relations alike; None of links."""
        return self.labels.get(self.target)

    @property
    def target_count(self) -> int:
        """How many nodes, or edges, there are of what is predicted: the bound of split ids."""
        if isinstance(self.target, str):
            return self.node_types[self.target].count
        return sum(self.relations[each].count for each in self.target_relations)

    @property
    def root_types(self) -> tuple[str, ...]:
        """The node types whose rows predictions are made of, :meth:`target_type` first."""
        ends = [end for each in self.target_relations for end in (each.dst, each.src)]
        return tuple(dict.fromkeys([self.target_type(), *ends]))

    def target_type(self) -> str:
        """The target node type; for an edge target, the relation's destination type."""
        return self.target if isinstance(self.target, str) else self.target.dst

    def ordered_relations(self) -> list[Relation]:
        """Relations in canonical order (sorted by their triple)."""
        return sorted(self.relations)
