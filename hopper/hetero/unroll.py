"""Names for node types and relations that depend on their place in the metatree.

Usually a node type has one name, wherever hops reach it. Three settings distinguish places:
metapaths that follow other relations at other depths (Heta, section 5), learnable rows for each
sub-metatree (section 6), and learnable rows for each relation (as in R-GCN on one-hot vectors). A
node that hops reach at two such places is then two nodes, of types with different names but with
the same features, draws and parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from hopper.graph.schema import Relation
from hopper.hetero.metatree import Metatree
from hopper.partition.description import ServerPartition


@dataclass(frozen=True)
class Unrolling:
    """The names of places, with the stored types and relations that they stand for."""

    types: Mapping[str, str]
    """the stored node type, by name; types of roots keep their names"""
    tables: Mapping[str, str]
    """the table of learnable rows, by name of a type"""
    relations: Mapping[Relation, Relation]
    """the stored relation, by name"""
    roots: Mapping[Relation, Relation]
    """the name of each stored root relation"""
    below: Mapping[Relation, tuple[Relation, ...]]
    """by stored root relation, the names of all relations of its sub-metatree"""
    depths: Mapping[str, int]
    """by name of a type, the number of hops after which it is first reached"""

    def read_at(self, hop: int) -> tuple[tuple[Relation, ...], tuple[str, ...]]:
        """Do as :meth:`hopper.hetero.metatree.Metatree.read_at`, under these names."""
        types = sorted(name for name, depth in self.depths.items() if depth <= hop)
        relations = sorted(relation for relation in self.relations if relation.dst in types)
        return tuple(relations), tuple(types)


By = Literal["root", "relation"]
"""What distinguishes places of a type: the sub-metatree, or the relation that reads the type."""


def unroll(tree: Metatree, *, by_depth: bool, by: By | None = None) -> Unrolling:
    """Name the places of a metatree, which differ by depth if ``by_depth``, and by ``by``."""

    def table(node_type: str, root: Relation | None, reader: Relation | None) -> str:
        # Names of types contain neither @ nor a slash.
        if root is None or reader is None or by is None:
            return node_type
        if by == "root":
            return f"{node_type}@{root.src}/{root.rel}"
        return f"{node_type}@{reader.rel}/{reader.dst}"

    def name(node_type: str, root: Relation, reader: Relation | None, depth: int) -> str:
        place = table(node_type, root, reader)
        return f"{place}@{depth}" if by_depth and depth else place

    types = {node_type: node_type for node_type in tree.root_types}
    tables, depths = dict(types), dict.fromkeys(types, 0)
    relations: dict[Relation, Relation] = {}
    roots: dict[Relation, Relation] = {}
    below: dict[Relation, tuple[Relation, ...]] = {}
    for root in tree.roots:
        names: dict[Relation, None] = {}
        for relation, reader, depth in tree.read_from(root):
            source = name(relation.src, root, relation, depth + 1)
            named = Relation(source, relation.rel, name(relation.dst, root, reader, depth))
            relations[named], names[named] = relation, None
            types[source] = relation.src
            tables[source] = table(relation.src, root, relation)
            depths[source] = min(depth + 1, depths.get(source, depth + 1))
            if depth == 0:
                roots[root] = named
        below[root] = tuple(names)
    return Unrolling(types, tables, relations, roots, below, depths)


def rename_partitions(
    partitions: Sequence[ServerPartition], unrolling: Unrolling
) -> list[ServerPartition]:
    """Return what servers hold of the relations that are followed, under their names."""
    renamed = []
    for partition in partitions:
        followed = [root for root in partition.roots if root in unrolling.roots]
        relations = frozenset(name for root in followed for name in unrolling.below[root])
        renamed.append(
            replace(
                partition,
                roots=tuple(sorted(unrolling.roots[root] for root in followed)),
                relations=relations,
                node_types=frozenset(end for name in relations for end in (name.src, name.dst)),
            )
        )
    return renamed
