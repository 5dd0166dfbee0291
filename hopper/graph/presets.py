"""The synthetic graphs that stand for published data sets, as ``presets.toml`` lists them."""

from __future__ import annotations

import math
import tomllib
from importlib.resources import files
from typing import Final, Literal, NamedTuple

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from hopper.errors import RequestError
from hopper.graph.schema import NodeType, Relation


class PresetEdges(NamedTuple):
    """A relation as it was published, without its reverse."""

    src: str
    rel: str
    dst: str
    published: int
    structure: int = 0
    """which of the two community structures its edges follow; graphs of one type have one"""

    @property
    def relation(self) -> Relation:
        """The relation's triple."""
        return Relation(self.src, self.rel, self.dst)


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A graph: its published figures, and how the graph that stands for it is drawn."""

    source: str
    """where the published figures come from, and what is ours"""
    types: dict[str, NodeType]
    """those without features have rows that are learned"""
    relations: list[PresetEdges]
    reverse: Literal["none", "cross-type", "all"]
    """which relations have a reverse; under "cross-type", those within a type are symmetrised"""
    target: str
    classes: int
    splits: dict[str, float]
    """share of the target's nodes in each split, drawn at random"""
    shares: tuple[float, ...]
    """share of the edges drawn at level 0 (the whole graph), 1 (its halves), 2, ...; the rest is
    drawn inside the communities that have one class, or one part of it"""
    secluded: float = 0.0
    """share of those communities that take no part in level 0"""
    leaf: int = 64
    """nodes in the smallest communities, at least; they are smaller than twice this"""
    label_level: int = 8
    """level of the communities that have one class; less deep where communities are too small"""
    max_degree: int | None = None
    """largest number of edges that one node is meant to have, in-edges where directed; None: a
    multiple of the mean"""
    in_exponent: float = 2.3
    """exponent of the power law of in-degrees (of all degrees where undirected)"""
    out_exponent: float = 2.3
    """the same for out-degrees; not used where undirected"""
    label_noise: float = 0.05
    """share of the nodes whose class is drawn at random"""

    @property
    def one_type(self) -> bool:
        """Whether there is one node type, whose communities have one structure."""
        return len(self.types) == 1

    @property
    def nodes(self) -> int:
        """Nodes of all types."""
        return sum(kind.count for kind in self.types.values())

    @property
    def edges(self) -> int:
        """Stored edges of all relations, reverses included."""
        published = sum(edges.published for edges in self.relations)
        return published if self.reverse == "none" else 2 * published

    @property
    def parts(self) -> int:
        """Parts of classes that the communities of a structure have; of one type whole classes."""
        return self.classes if self.one_type else max(2, math.isqrt(self.classes - 1) + 1)

    def is_symmetrised(self, edges: PresetEdges) -> bool:
        """Return whether a relation stores each of its edges in both directions."""
        return edges.src == edges.dst and self.reverse == "cross-type"

    def stored_relations(self, edges: PresetEdges) -> list[Relation]:
        """Return a relation, and its reverse if that is another one."""
        reverse = Relation(edges.dst, f"rev_{edges.rel}", edges.src)
        is_alone = self.reverse == "none" or self.is_symmetrised(edges)
        return [edges.relation] if is_alone else [edges.relation, reverse]

    def smallest_count(self) -> int:
        """Return the fewest nodes for which levels and degrees of one type still make sense."""
        mean_degree = int(self.edges / self.nodes)
        return max(self.leaf << len(self.shares), 16 * mean_degree, 8 * self.classes)


PRESETS: Final = TypeAdapter(dict[str, Preset]).validate_python(
    tomllib.loads(files("hopper.graph").joinpath("presets.toml").read_text("utf-8"))
)


def find_preset(name: str) -> Preset:
    """Look up a preset; a RequestError lists the names of all."""
    if name not in PRESETS:
        raise RequestError(f"preset: expected one of {', '.join(PRESETS)}, given {name!r}")
    return PRESETS[name]
