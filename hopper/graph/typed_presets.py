"""Types, relations and counts of the typed synthetic graphs that stand for published ones.

The totals are published. Where a source gives no counts by type, the division among types is ours,
and adds up to the published totals. docs/reference/presets.md explains how the generator uses the
figures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final, Literal


@dataclass(frozen=True)
class TypedNodes:
    """A node type; without a ``feature_dim``, its rows have to be learned."""

    count: int
    feature_dim: int | None = None
    feature_dtype: Literal["float32", "float16"] = "float32"


@dataclass(frozen=True)
class TypedEdges:
    """A relation as it was published, without its reverse.

    Attributes
    ----------
    structure: which of the two community structures its edges follow.
    """

    src: str
    rel: str
    dst: str
    count: int
    structure: Literal[0, 1]


@dataclass(frozen=True)
class TypedPreset:
    """A graph of several node types."""

    source: str
    """where the published figures come from, and what is ours"""
    types: Mapping[str, TypedNodes]
    relations: Sequence[TypedEdges]
    reverse: Literal["all", "cross-type"]
    """which relations have a reverse; under "cross-type", those within a type are symmetrised"""
    target: str
    classes: int
    splits: Mapping[str, float]
    """share of the target's nodes in each split, drawn at random"""
    scattered: float
    """share of the edges that go anywhere; the rest stays in communities"""
    label_noise: float = 0.05
    signal: float = 2.0
    """distance of a community's centroid from the origin, in standard deviations of a feature"""

    @property
    def nodes(self) -> int:
        """Nodes of all types."""
        return sum(kind.count for kind in self.types.values())

    @property
    def edges(self) -> int:
        """Stored edges of all relations, reverses included."""
        return 2 * sum(relation.count for relation in self.relations)

    @property
    def stored_relations(self) -> int:
        """Number of relations, reverses included."""
        same_type = [relation for relation in self.relations if relation.src == relation.dst]
        doubled = len(self.relations) * 2
        return doubled if self.reverse == "all" else doubled - len(same_type)


def _make_many(
    types: Sequence[str], nodes: int, relations: int, edges: int, target: str
) -> tuple[dict[str, TypedNodes], list[TypedEdges]]:
    """Make many types, each two thirds as large as the one before, and relations between them.

    The first relations lead from every other type to the target, the next ones between types in
    turn.
    """
    shares = [(2 / 3) ** number for number in range(len(types))]
    counts = [max(16, round(nodes * share / sum(shares))) for share in shares]
    counts[0] += nodes - sum(counts)
    size = dict(zip(types, counts, strict=True))
    pairs = [(src, target) for src in types if src != target]
    step = 0
    while len(pairs) < relations:
        src = types[step % len(types)]
        dst = types[(step + step // len(types)) % len(types)]
        step += 1
        pairs.append((src, dst))
    pairs = pairs[:relations]
    weights = [(size[src] * size[dst]) ** 0.5 for src, dst in pairs]
    relations_made = [
        TypedEdges(
            src,
            f"r{number}",
            dst,
            max(16, round(edges * weight / sum(weights))),
            _choose_structure(number),
        )
        for number, ((src, dst), weight) in enumerate(zip(pairs, weights, strict=True))
    ]
    missing = edges - sum(relation.count for relation in relations_made)
    relations_made[0] = replace(relations_made[0], count=relations_made[0].count + missing)
    return {name: TypedNodes(count) for name, count in size.items()}, relations_made


def _choose_structure(number: int) -> Literal[0, 1]:
    """Return the structure that a relation follows; relations take turns."""
    return 1 if number % 2 else 0


_AM_TYPES, _AM_RELATIONS = _make_many(
    ("object", "term", "agent", "place", "material", "event", "record"),
    1_885_136, 54, 2_834_341, "object",
)  # fmt: skip
_BGS_TYPES, _BGS_RELATIONS = _make_many(
    ("unit", *(f"concept{number}" for number in range(1, 27))), 94_806, 61, 336_442, "unit"
)
_FREEBASE_NAMES: Final = (
    *("music", "book", "people", "film", "location", "organization", "sports", "business"),
)
_FREEBASE_TYPES, _ = _make_many(_FREEBASE_NAMES, 12_164_758, 7, 7 * 16, "book")


def _freebase_relations(edges: int) -> list[TypedEdges]:
    """Make 36 relations: one within every type, and one between every two types."""
    pairs = [(a, b) for first, a in enumerate(_FREEBASE_NAMES) for b in _FREEBASE_NAMES[first:]]
    weights = [(_FREEBASE_TYPES[a].count * _FREEBASE_TYPES[b].count) ** 0.5 for a, b in pairs]
    return [
        TypedEdges(
            a, f"{a}_to_{b}", b, round(edges * weight / sum(weights)), _choose_structure(number)
        )
        for number, ((a, b), weight) in enumerate(zip(pairs, weights, strict=True))
    ]


TYPED_PRESETS: Final[Mapping[str, TypedPreset]] = MappingProxyType(
    {
        "mag-like": TypedPreset(
            source="ogbn-mag (Hu et al., Open Graph Benchmark, 2020)",
            types={
                "paper": TypedNodes(736_389, 128),
                "author": TypedNodes(1_134_649),
                "institution": TypedNodes(8_740),
                "field": TypedNodes(59_965),
            },
            relations=(
                TypedEdges("author", "writes", "paper", 7_145_660, 0),
                TypedEdges("author", "affiliated_with", "institution", 1_043_998, 0),
                TypedEdges("paper", "has_topic", "field", 7_505_078, 1),
                TypedEdges("paper", "cites", "paper", 5_416_271, 0),
            ),
            reverse="cross-type",
            target="paper",
            classes=349,
            splits=MappingProxyType({"train": 0.855, "val": 0.088, "test": 0.057}),
            scattered=0.45,
        ),
        "freebase-like": TypedPreset(
            source="Freebase, Heta Table 1; the division among types and relations is ours",
            types=_FREEBASE_TYPES,
            relations=_freebase_relations(62_982_566),
            reverse="cross-type",
            target="book",
            classes=8,
            splits=MappingProxyType({"train": 0.02, "val": 0.002, "test": 0.004}),
            scattered=0.45,
        ),
        "donor-like": TypedPreset(
            source="Donor, Heta Table 1; the division among types and the widths between 7 and "
            "789 are ours",
            types={
                "project": TypedNodes(664_000, 43),
                "essay": TypedNodes(664_000, 789),
                "resource": TypedNodes(3_668_000, 72),
                "donation": TypedNodes(3_098_000, 31),
                "teacher": TypedNodes(250_000, 7),
                "school": TypedNodes(57_000, 28),
                "donor": TypedNodes(1_299_000, 12),
            },
            relations=(
                TypedEdges("essay", "describes", "project", 664_000, 0),
                TypedEdges("resource", "requested_by", "project", 3_668_000, 0),
                TypedEdges("donation", "given_to", "project", 3_098_000, 1),
                TypedEdges("donor", "makes", "donation", 3_098_000, 1),
                TypedEdges("teacher", "leads", "project", 664_000, 0),
                TypedEdges("school", "hosts", "project", 664_000, 1),
                TypedEdges("school", "employs", "teacher", 250_000, 0),
            ),
            reverse="cross-type",
            target="project",
            classes=2,
            splits=MappingProxyType({"train": 0.6, "val": 0.1, "test": 0.3}),
            scattered=0.45,
        ),
        "igbhet-like": TypedPreset(
            source="IGB-HET, Heta Table 1; the division of the edges other than citations is ours",
            types={
                "paper": TypedNodes(10_000_000, 1024),
                "author": TypedNodes(15_544_654, 1024),
                "institute": TypedNodes(23_256, 1024),
                "field": TypedNodes(415_054, 1024),
            },
            relations=(
                TypedEdges("paper", "cites", "paper", 120_077_694, 0),
                TypedEdges("paper", "written_by", "author", 39_900_000, 0),
                TypedEdges("author", "affiliated_to", "institute", 17_100_000, 0),
                TypedEdges("paper", "topic", "field", 68_400_000, 1),
            ),
            reverse="cross-type",
            target="paper",
            classes=2983,
            splits=MappingProxyType({"train": 0.6, "val": 0.2, "test": 0.2}),
            scattered=0.45,
        ),
        "mag240m-like": TypedPreset(
            source="MAG240M (Hu et al., OGB-LSC, 2021)",
            types={
                "paper": TypedNodes(121_751_666, 768, "float16"),
                "author": TypedNodes(122_383_112),
                "institution": TypedNodes(25_721),
            },
            relations=(
                TypedEdges("author", "writes", "paper", 386_022_720, 1),
                TypedEdges("author", "affiliated_with", "institution", 44_592_586, 1),
                TypedEdges("paper", "cites", "paper", 1_297_748_926, 0),
            ),
            reverse="cross-type",
            target="paper",
            classes=153,
            splits=MappingProxyType({"train": 0.0091, "val": 0.0011, "test": 0.0012}),
            scattered=0.25,
        ),
        "am-like": TypedPreset(
            source="AM, HiFuse Table 2; types, relations and their division are ours",
            types=_AM_TYPES,
            relations=_AM_RELATIONS,
            reverse="all",
            target="object",
            classes=11,
            splits=MappingProxyType({"train": 0.0013, "val": 0.0003, "test": 0.0003}),
            scattered=0.3,
        ),
        "bgs-like": TypedPreset(
            source="BGS, HiFuse Table 2; types, relations and their division are ours",
            types=_BGS_TYPES,
            relations=_BGS_RELATIONS,
            reverse="all",
            target="unit",
            classes=2,
            splits=MappingProxyType({"train": 0.004, "val": 0.001, "test": 0.001}),
            scattered=0.3,
        ),
    }
)
