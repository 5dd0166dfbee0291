"""The schema of a graph directory: the content of ``graph.json`` as typed values.

A homogeneous graph is one node type and one relation. There is no second code path for it.
Annotations say what :mod:`hopper.graph.schema_json` accepts in the file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import ConfigDict, Field, StrictBool

from cache_server.feature_codec import FeatureForm
from hopper.graph.columns import FeatureColumn, RoundingError

LabelKind = Literal["class", "multi_hot", "float", "tasks"]
Predicted = Literal["node", "edge", "link"]
"""Labels of nodes, labels of edges, or links."""
TargetKind = Literal["class", "multi_hot", "float", "tasks", "link"]
"""What is predicted: labels of some kind, or links."""
Count = Annotated[int, Field(strict=True, ge=0)]
Width = Annotated[int, Field(strict=True, ge=1)]


class Relation(NamedTuple):
    """A canonical edge type: source node type, name, destination node type."""

    src: str
    rel: str
    dst: str

    def __str__(self) -> str:
        return f"{self.src}/{self.rel}/{self.dst}"

    def draw_key(self) -> int:
        """Return this relation's 64-bit key in draws (docs/inside/draws.md)."""
        text = "\0".join(self).encode()
        return int.from_bytes(hashlib.sha256(text).digest()[:8], "little")


Labelled = str | Relation
"""What labels or times belong to: a node type (its nodes) or a relation (its edges)."""


def find_relations(word: str, relations: Iterable[Relation]) -> list[Relation]:
    """Find the relations that ``word`` names, either as ``src/name/dst`` or as ``name``."""
    return [relation for relation in relations if word in (str(relation), relation.rel)]


@dataclass(frozen=True)
class NodeType:
    """One node type.

    Attributes
    ----------
    feature_dim, feature_dtype: width and stored form of the features; None = no features.
    timed: whether the nodes have times.
    feature_error: how far the features are from those that they were made of; None = not at all.
    columns: the columns of the source that the features were made of; empty = not known.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    count: Count
    feature_dim: Width | None = None
    feature_dtype: FeatureForm | None = None
    timed: StrictBool = False
    feature_error: RoundingError | None = None
    columns: tuple[FeatureColumn, ...] = ()


@dataclass(frozen=True)
class EdgeType:
    """One relation; features of its edges are described as in :class:`NodeType`."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    count: Count
    feature_dim: Width | None = None
    feature_dtype: FeatureForm | None = None
    weighted: StrictBool = False
    timed: StrictBool = False
    feature_error: RoundingError | None = None
    columns: tuple[FeatureColumn, ...] = ()


@dataclass(frozen=True)
class Labels:
    """Labels of a node type's nodes, or of a relation's edges.

    They are int64 classes (-1 for unlabelled), uint8 multi-hot rows or float32 rows. Labels of
    several tasks stand side by side in float32 rows.

    Attributes
    ----------
    classes: width of the logits, of all tasks together.
    tasks: name and labels of each task, in order of their columns; empty unless ``kind`` is
        "tasks".
    """

    kind: LabelKind
    classes: int
    tasks: tuple[tuple[str, Labels], ...] = ()

    @property
    def columns(self) -> int:
        """Number of columns of a row of labels."""
        if self.kind == "tasks":
            return sum(labels.columns for _, labels in self.tasks)
        return 1 if self.kind == "class" else self.classes

    @property
    def dtype(self) -> str:
        """dtype of the stored labels."""
        return {"class": "int64", "multi_hot": "uint8"}.get(self.kind, "float32")

    def task_slices(self) -> dict[str, tuple[Labels, slice, slice]]:
        """Return each task's labels, and its slices of the logits and of the columns, by name."""
        slices, logit, column = {}, 0, 0
        for name, labels in self.tasks:
            logits = slice(logit, logit + labels.classes)
            slices[name] = labels, logits, slice(column, column + labels.columns)
            logit, column = logits.stop, column + labels.columns
        return slices


@dataclass(frozen=True)
class GraphSchema:
    """The content of ``graph.json``.

    Attributes
    ----------
    target: the node type or the relation that is predicted. Of a relation with labels the labels of
        edges are predicted, of any other relation its links.
    labels: labels by node type or relation.
    splits: number of ids by a split's name.
    source: where the graph comes from, in words.
    also: further relations that are predicted together with a target relation.
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
        """The relations whose edges are predicted; empty where nodes are predicted."""
        return () if isinstance(self.target, str) else (self.target, *self.also)

    def table(self, name: str) -> NodeType | EdgeType:
        """Return the node type, or the relation ``src/rel/dst``, whose features a table holds."""
        if name in self.node_types:
            return self.node_types[name]
        return self.relations[Relation(*name.split("/"))]

    @property
    def feature_tables(self) -> dict[str, NodeType | EdgeType]:
        """The node types and relations with features, by the names of their tables."""
        kinds = self.kinds.items()
        return {str(owner): kind for owner, kind in kinds if kind.feature_dim is not None}

    @property
    def columns(self) -> dict[str, tuple[FeatureColumn, ...]]:
        """The columns of the source by table with features; empty where they are not known."""
        return {name: kind.columns for name, kind in self.feature_tables.items()}

    @property
    def kinds(self) -> dict[Labelled, NodeType | EdgeType]:
        """All node types and relations."""
        return dict([*self.node_types.items(), *self.relations.items()])

    @property
    def timed(self) -> list[Labelled]:
        """The node types and relations with times."""
        return [owner for owner, kind in self.kinds.items() if kind.timed]

    @property
    def links_are_timed(self) -> bool:
        """Return whether there are target relations, and the edges of all of them have times."""
        kinds = [self.relations[relation] for relation in self.target_relations]
        return bool(kinds) and all(kind.timed for kind in kinds)

    def is_timed(self, relation: Relation) -> bool:
        """Return whether an edge may be seen from a time on: its own, or its source's."""
        return self.relations[relation].timed or self.node_types[relation.src].timed

    def count_of(self, owner: Labelled) -> int:
        """Return the number of nodes of a type, or of edges of a relation."""
        return self.kinds[owner].count

    @property
    def predicted(self) -> Predicted:
        """The kind of prediction: labels of nodes, labels of edges or links."""
        if isinstance(self.target, str):
            return "node"
        return "edge" if self.target in self.labels else "link"

    @property
    def target_labels(self) -> Labels | None:
        """The labels that are predicted, the same for all target relations; None for links."""
        return self.labels.get(self.target)

    @property
    def target_count(self) -> int:
        """Number of target nodes, or of edges of the target relations; ids in splits are below."""
        return sum(self.count_of(owner) for owner in self.target_relations or (self.target,))

    @property
    def root_types(self) -> tuple[str, ...]:
        """The node types of roots, or of the ends of target edges; :meth:`target_type` first."""
        ends = [end for relation in self.target_relations for end in (relation.dst, relation.src)]
        return tuple(dict.fromkeys([self.target_type(), *ends]))

    def target_type(self) -> str:
        """Return the target node type; for an edge target, the relation's destination type."""
        return self.target if isinstance(self.target, str) else self.target.dst

    def ordered_relations(self) -> list[Relation]:
        """Return the relations in canonical order (sorted by their triple)."""
        return sorted(self.relations)
