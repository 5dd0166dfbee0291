"""Node types and relations under a name for every place in the metatree that they are met at.

Ordinarily a type is one, wherever hops find it. Where metapaths say what is followed at which depth
(Heta, section 5), or every sub-metatree has learnable rows of its own (section 6), or every
relation has (as R-GCN's on one-hot vectors), a node found at another place is another node: of a
type that goes by another name, but has the same features, draws and parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from hopper.graph.schema import Relation
from hopper.partition.layouts import Holding

if TYPE_CHECKING:
    # It loads networkx, which ranks of most models do without.
    from hopper.hetero.metatree import Metatree


@dataclass(frozen=True)
class Unrolling:
    """Names of places, and what is stored for them.

    Attributes
    ----------
    types: by name, the node type that is stored; the roots' keeps its name.
    tables: by name, that of the table of learnable rows, where places have tables of their own.
    relations: by name, the relation that is stored.
    roots: by root relation as stored, its name.
    below: by root relation as stored, the names of all relations of its sub-metatree.
    depths: by name of a type, at how many hops it is first met.
    """

    types: Mapping[str, str]
    tables: Mapping[str, str]
    relations: Mapping[Relation, Relation]
    roots: Mapping[Relation, Relation]
    below: Mapping[Relation, tuple[Relation, ...]]
    depths: Mapping[str, int]

    def read_at(self, hop: int) -> tuple[tuple[Relation, ...], tuple[str, ...]]:
        """What is drawn at a hop and by which types, as of
        :meth:`hopper.hetero.metatree.Metatree.read_at`."""
        types = sorted(each for each, depth in self.depths.items() if depth <= hop)
        return tuple(sorted(each for each in self.relations if each.dst in types)), tuple(types)


By = Literal["root", "relation"]
"""what tells rows of a type apart: the sub-metatree that meets them, or the relation that reads
them"""


def unroll(tree: Metatree, *, by_depth: bool, by: By | None = None) -> Unrolling:
    """Name the places of a metatree.

    Parameters
    ----------
    by_depth: whether another depth is another place.
    by: what else tells places apart; None = nothing.
    """

    def table(node_type: str, root: Relation | None, reader: Relation | None) -> str:
        # No type's name has an @ or a slash in it.
        if root is None or reader is None or by is None:
            return node_type
        if by == "root":
            return f"{node_type}@{root.src}/{root.rel}"
        return f"{node_type}@{reader.rel}/{reader.dst}"

    def name(node_type: str, root: Relation, reader: Relation | None, depth: int) -> str:
        own = table(node_type, root, reader)
        return f"{own}@{depth}" if by_depth and depth else own

    types = {each: each for each in tree.root_types}
    tables, depths = dict(types), dict.fromkeys(types, 0)
    relations: dict[Relation, Relation] = {}
    roots: dict[Relation, Relation] = {}
    below: dict[Relation, tuple[Relation, ...]] = {}
    for root in tree.roots:
        found: dict[Relation, None] = {}
        for relation, reader, depth in tree.read_from(root):
            source = name(relation.src, root, relation, depth + 1)
            own = Relation(source, relation.rel, name(relation.dst, root, reader, depth))
            relations[own], found[own] = relation, None
            types[source] = relation.src
            tables[source] = table(relation.src, root, relation)
            depths[source] = min(depth + 1, depths.get(source, depth + 1))
            if depth == 0:
                roots[root] = own
        below[root] = tuple(found)
    return Unrolling(types, tables, relations, roots, below, depths)


def rename_holdings(holdings: Sequence[Holding], unrolling: Unrolling) -> list[Holding]:
    """What servers hold of what is followed, under its names."""
    renamed = []
    for held in holdings:
        followed = [each for each in held.roots if each in unrolling.roots]
        relations = frozenset(each for root in followed for each in unrolling.below[root])
        renamed.append(
            replace(
                held,
                roots=tuple(sorted(unrolling.roots[each] for each in followed)),
                relations=relations,
                node_types=frozenset(end for each in relations for end in (each.src, each.dst)),
            )
        )
    return renamed
