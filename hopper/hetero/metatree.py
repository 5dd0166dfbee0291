"""The metatree: what k hops from the target type read, relation by relation (Heta, section 5).

The tree is unrolled: at every depth below k each relation into a vertex's type makes a child, also
one that was met before, since sampling meets it again. Equal subtrees are held once, as a DAG whose
vertices are (type, depth).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from hopper.errors import RequestError
from hopper.graph.schema import Relation
from hopper.hetero.metagraph import (
    Metagraph,
    edge_count,
    find_relation,
    node_count,
    relations_into,
)

_MOST_LAYERS: Final = 1000


class Vertex(NamedTuple):
    """A node type at a number of hops from the target."""

    node_type: str
    depth: int


@dataclass(frozen=True)
class Metatree:
    """What k hops from the target read.

    Attributes
    ----------
    target: the type of the root. layers: k.
    children: by vertex above the leaves, the relations into its type that are followed, in
        canonical order; a vertex whose type has none is there with none.
    others: types of further roots, whose hops are followed too.
    """

    target: str
    layers: int
    children: Mapping[Vertex, tuple[Relation, ...]]
    others: tuple[str, ...] = ()

    @property
    def reached(self) -> list[str]:
        """The distinct node types that hops from any root reach, those of roots included."""
        relations = [each for own in self.children.values() for each in own]
        return sorted({self.target, *self.others, *(each.src for each in relations)})

    @property
    def root(self) -> Vertex:
        """The target type at depth 0."""
        return Vertex(self.target, 0)

    @property
    def root_types(self) -> tuple[str, ...]:
        """The types of roots, the target first."""
        return self.target, *self.others

    @property
    def roots(self) -> tuple[Relation, ...]:
        """The root relations, into roots of any type, each of which has a sub-metatree."""
        every = (self.children[Vertex(each, 0)] for each in self.root_types)
        return tuple(sorted(relation for own in every for relation in own))

    def followed_from(self, relations: Sequence[Relation]) -> Iterator[tuple[Relation, int]]:
        """Every (relation, depth of its destination) of the sub-metatrees of root relations, each
        once, hop by hop."""
        level = list(relations)
        for depth in range(self.layers):
            yield from ((relation, depth) for relation in level)
            if depth + 1 < self.layers:
                types = dict.fromkeys(relation.src for relation in level)
                below = (self.children[Vertex(each, depth + 1)] for each in types)
                level = list(dict.fromkeys(relation for each in below for relation in each))

    def read_from(self, root: Relation) -> Iterator[tuple[Relation, Relation | None, int]]:
        """Every relation of a root relation's sub-metatree with one that reads its destinations
        (None: they are the roots) and the depth of these, each such pair once, hop by hop."""
        level: list[tuple[Relation, Relation | None]] = [(root, None)]
        for depth in range(self.layers):
            yield from ((relation, reader, depth) for relation, reader in level)
            if depth + 1 < self.layers:
                level = [
                    (below, relation)
                    for relation in dict.fromkeys(each for each, _ in level)
                    for below in self.children[Vertex(relation.src, depth + 1)]
                ]

    def read_at(self, hop: int) -> tuple[tuple[Relation, ...], tuple[str, ...]]:
        """What is drawn at a hop and by which types: frontiers are cumulative, so every type found
        by then is drawn for again. (Where metapaths follow something else at another depth, types
        are told apart by depth first: :mod:`hopper.hetero.unroll`.)
        """
        vertices = [vertex for vertex in self.children if vertex.depth <= hop]
        relations = {relation for vertex in vertices for relation in self.children[vertex]}
        return tuple(sorted(relations)), tuple(sorted({each.node_type for each in vertices}))

    def relations_of(self, relations: Sequence[Relation]) -> list[Relation]:
        """The distinct relations of the sub-metatrees of root relations, in canonical order."""
        return sorted({relation for relation, _ in self.followed_from(relations)})

    def types_of(self, relations: Sequence[Relation]) -> list[str]:
        """The distinct node types of the sub-metatrees of root relations, their roots included, and
        those types of roots that no relation leads to: whoever has their rows finishes them."""
        bare = [each for each in self.root_types if not self.children[Vertex(each, 0)]]
        below = (each.src for each in self.relations_of(relations))
        return sorted({*bare, *(each.dst for each in relations), *below})


def make_metatree(
    metagraph: Metagraph,
    target: str,
    layers: int,
    metapaths: Sequence[Sequence[str]] = (),
    others: Sequence[str] = (),
) -> Metatree:
    """Unroll the metagraph from the target, or follow metapaths alone (Algorithm 2, lines 1-5).

    Parameters
    ----------
    layers: hops, at least 1; as many as the model has layers.
    metapaths: each a list of relations from the target outwards, at most ``layers`` long; what a
        type follows at a depth is the union of what the paths through it do there.
    others: types of further roots.

    Raises
    ------
    RequestError: the target is no type or nothing leads to it, layers are out of range, or a
        metapath does not hang together; names what was expected.
    """
    if target not in metagraph:
        raise RequestError(
            f"target: expected one of {', '.join(sorted(metagraph))}, given {target!r}"
        )
    if not 1 <= layers <= _MOST_LAYERS:
        raise RequestError(f"layers: expected 1 to {_MOST_LAYERS:,}, given {layers}")
    if not relations_into(metagraph, target) and not others:
        raise RequestError(f"target: no relation leads to {target!r}, so it has no neighbours")
    if metapaths and others:
        raise RequestError(
            f"model.metapaths: they start from one type of roots; expected none, since the ends of "
            f"links are of types {', '.join([target, *others])}"
        )
    if metapaths:
        return Metatree(target, layers, _along(metagraph, target, layers, metapaths))
    children: dict[Vertex, tuple[Relation, ...]] = {}
    types = [target, *others]
    for depth in range(layers):
        for each in types:
            children[Vertex(each, depth)] = tuple(relations_into(metagraph, each))
        types = list(dict.fromkeys(r.src for each in types for r in children[Vertex(each, depth)]))
    return Metatree(target, layers, children, tuple(others))


def weigh(metagraph: Metagraph, tree: Metatree, relations: Sequence[Relation]) -> int:
    """The weight of sub-metatrees together: nodes of every distinct type, the root's included, and
    edges of every distinct relation.

    Line 8 of Algorithm 2, as section 5's figures for ogbn-mag want it read: as printed, leaves and
    all links, it does not give them.
    """
    nodes = sum(node_count(metagraph, each) for each in tree.types_of(relations))
    return nodes + sum(edge_count(metagraph, each) for each in tree.relations_of(relations))


def _along(
    metagraph: Metagraph, target: str, layers: int, metapaths: Sequence[Sequence[str]]
) -> dict[Vertex, tuple[Relation, ...]]:
    followed: dict[Vertex, set[Relation]] = {Vertex(target, 0): set()}
    for path in metapaths:
        told = ",".join(path)
        if not 1 <= len(path) <= layers:
            raise RequestError(
                f"metapath {told!r}: expected 1 to {layers} relations, given {len(path)}"
            )
        vertex = Vertex(target, 0)
        for word in path:
            relation = find_relation(metagraph, word)
            if relation.dst != vertex.node_type:
                raise RequestError(
                    f"metapath {told!r}: {relation} ends in {relation.dst!r}, expected a relation "
                    f"into {vertex.node_type!r}, where the path stands"
                )
            followed[vertex].add(relation)
            vertex = Vertex(relation.src, vertex.depth + 1)
            followed.setdefault(vertex, set())
    return {
        vertex: tuple(sorted(found)) for vertex, found in followed.items() if vertex.depth < layers
    }
