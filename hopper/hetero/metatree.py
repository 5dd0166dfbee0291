"""The metatree: the relations that k hops from the target type read (Heta, section 5).

The tree is unrolled: at every depth below k, each relation into a vertex's type makes a child. A
relation that occurred before makes a child again, since sampling reads it again. Equal subtrees are
stored once, as a DAG whose vertices are (type, depth).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from hopper.errors import RequestError
from hopper.graph.schema import GraphSchema, Relation, find_relations

_MOST_LAYERS: Final = 1000


class Vertex(NamedTuple):
    """A node type at a number of hops from the target."""

    node_type: str
    depth: int


@dataclass(frozen=True)
class Metatree:
    """The relations that k hops from the target read."""

    target: str
    """the type of the root"""
    layers: int
    """the number of hops, k"""
    children: Mapping[Vertex, tuple[Relation, ...]]
    """by vertex above the leaves, the relations into its type that hops follow, in canonical order;
    empty if its type has none"""
    others: tuple[str, ...] = ()
    """the types of further roots, from which hops start as well"""

    @property
    def reached_types(self) -> list[str]:
        """The distinct node types that hops from any root reach, with the types of roots."""
        relations = [relation for children in self.children.values() for relation in children]
        return sorted({self.target, *self.others, *(relation.src for relation in relations)})

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
        """The root relations, which lead into roots of any type and have a sub-metatree each."""
        by_type = (self.children[Vertex(node_type, 0)] for node_type in self.root_types)
        return tuple(sorted(relation for relations in by_type for relation in relations))

    def read_from(self, root: Relation) -> Iterator[tuple[Relation, Relation | None, int]]:
        """Yield every (relation, the relation that reads its destinations, or None if these are the
        roots, depth of its destinations) of a root relation's sub-metatree once, hop by hop."""
        level: list[tuple[Relation, Relation | None]] = [(root, None)]
        for depth in range(self.layers):
            yield from ((relation, reader, depth) for relation, reader in level)
            if depth + 1 < self.layers:
                level = [
                    (below, relation)
                    for relation in dict.fromkeys(relation for relation, _ in level)
                    for below in self.children[Vertex(relation.src, depth + 1)]
                ]

    def read_at(self, hop: int) -> tuple[tuple[Relation, ...], tuple[str, ...]]:
        """Return the relations that are drawn at a hop, and the node types that draw them.

        Frontiers are cumulative, so every type that earlier hops reached draws again. If metapaths
        follow other relations at other depths, :mod:`hopper.hetero.unroll` first gives types a
        name for each depth.
        """
        vertices = [vertex for vertex in self.children if vertex.depth <= hop]
        relations = {relation for vertex in vertices for relation in self.children[vertex]}
        return tuple(sorted(relations)), tuple(sorted({vertex.node_type for vertex in vertices}))

    def relations_of(self, relations: Sequence[Relation]) -> list[Relation]:
        """Return the relations of the sub-metatrees of root relations, in canonical order."""
        return sorted({relation for root in relations for relation, _, _ in self.read_from(root)})

    def types_of(self, relations: Sequence[Relation]) -> list[str]:
        """Return the node types of the sub-metatrees of root relations, those of roots included.

        Types of roots that no relation leads to are always among them, since the servers that
        have their rows finish them.
        """
        bare = [name for name in self.root_types if not self.children[Vertex(name, 0)]]
        below = (relation.src for relation in self.relations_of(relations))
        return sorted({*bare, *(relation.dst for relation in relations), *below})


def make_metatree(
    schema: GraphSchema,
    target: str,
    layers: int,
    metapaths: Sequence[Sequence[str]] = (),
    others: Sequence[str] = (),
) -> Metatree:
    """Unroll a graph's relations from the target, and from ``others``, the types of further roots,
    or follow only metapaths (Algorithm 2, lines 1-5); a :class:`RequestError` says what does not
    fit.

    There are as many hops as the model has layers, at least 1. Metapaths are lists of relations
    from the target outwards, each at most ``layers`` long. At a depth a type follows all relations
    that any path through it follows there.
    """
    if target not in schema.node_types:
        known = ", ".join(sorted(schema.node_types))
        raise RequestError(f"target: expected one of {known}, given {target!r}")
    if not 1 <= layers <= _MOST_LAYERS:
        raise RequestError(f"layers: expected 1 to {_MOST_LAYERS:,}, given {layers}")
    into: dict[str, tuple[Relation, ...]] = dict.fromkeys(schema.node_types, ())
    for relation in schema.ordered_relations():
        into[relation.dst] += (relation,)
    if not into[target] and not others:
        raise RequestError(f"target: no relation leads to {target!r}, so it has no neighbours")
    if metapaths and others:
        raise RequestError(
            f"model.metapaths: metapaths start from one type of roots; expected none, since the "
            f"ends of links are of types {', '.join([target, *others])}"
        )
    if metapaths:
        return Metatree(target, layers, _follow_metapaths(schema, target, layers, metapaths))
    children: dict[Vertex, tuple[Relation, ...]] = {}
    types = [target, *others]
    for depth in range(layers):
        children |= {Vertex(name, depth): into[name] for name in types}
        types = list(dict.fromkeys(relation.src for name in types for relation in into[name]))
    return Metatree(target, layers, children, tuple(others))


def weigh(schema: GraphSchema, tree: Metatree, relations: Sequence[Relation]) -> int:
    """Return the weight of sub-metatrees together: the nodes of every distinct type, the root's
    included, and the edges of every distinct relation.

    This reading of line 8 of Algorithm 2 gives the figures of section 5 for ogbn-mag. The printed
    formula, which counts leaves and all links, does not.
    """
    nodes = sum(schema.node_types[name].count for name in tree.types_of(relations))
    edges = sum(schema.relations[relation].count for relation in tree.relations_of(relations))
    return nodes + edges


def _follow_metapaths(
    schema: GraphSchema, target: str, layers: int, metapaths: Sequence[Sequence[str]]
) -> dict[Vertex, tuple[Relation, ...]]:
    followed: dict[Vertex, set[Relation]] = {Vertex(target, 0): set()}
    for path in metapaths:
        path_text = ",".join(path)
        if not 1 <= len(path) <= layers:
            raise RequestError(
                f"metapath {path_text!r}: expected 1 to {layers} relations, given {len(path)}"
            )
        vertex = Vertex(target, 0)
        for word in path:
            relation = _find_relation(schema, word)
            if relation.dst != vertex.node_type:
                raise RequestError(
                    f"metapath {path_text!r}: {relation} ends in {relation.dst!r}; expected a "
                    f"relation into {vertex.node_type!r}, where the path stands"
                )
            followed[vertex].add(relation)
            vertex = Vertex(relation.src, vertex.depth + 1)
            followed.setdefault(vertex, set())
    return {
        vertex: tuple(sorted(relations))
        for vertex, relations in followed.items()
        if vertex.depth < layers
    }


def _find_relation(schema: GraphSchema, text: str) -> Relation:
    """Find a relation by its triple ``src/name/dst``, or by its name if only one has it."""
    relations = schema.ordered_relations()
    matches = find_relations(text, relations)
    if len(matches) != 1:
        reason = f"{', '.join(map(str, matches))} have that name" if matches else "there is none"
        raise RequestError(
            f"relation {text!r}: expected one of {', '.join(map(str, relations))}, by its triple "
            f"or by a name that only one has; {reason}"
        )
    return matches[0]
