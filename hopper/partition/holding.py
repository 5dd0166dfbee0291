"""The holdings of servers: the part of a graph divided by relation that each one stores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from hopper.errors import GraphError
from hopper.graph.schema import GraphSchema, Relation


class Part(NamedTuple):
    """The part of its root relation's edges that a server stores."""

    place: int
    """index of the part"""
    parts: int
    """number of parts"""


WHOLE: Final = Part(0, 1)


@dataclass(frozen=True)
class Holding:
    """The part of a graph divided by relation that one server stores.

    Attributes
    ----------
    roots: the root relations that it aggregates, in canonical order.
    place: index of the server among those with the same root relations.
    copies: number of servers with the same root relations.
    relations, node_types: all relations and node types that it stores.
    part: its part of a root relation's edges. With several parts there is one root relation.
    held: number of nodes by type whose rows it stores, if it has one of several parts.
    """

    roots: tuple[Relation, ...]
    place: int
    copies: int
    relations: frozenset[Relation]
    node_types: frozenset[str]
    part: Part = WHOLE
    held: Mapping[str, int] = field(default_factory=dict)


def read_holdings(
    schema: GraphSchema, description: dict[str, Any], where: str
) -> Sequence[Holding]:
    """Read from partition.json what every server stores.

    Parameters
    ----------
    description: the content of partition.json.
    where: its path, for errors.

    Raises
    ------
    GraphError: the field "meta" is missing or malformed, or does not fit the schema.
    """
    known = {str(relation): relation for relation in schema.relations}
    try:
        meta = description["meta"]
        holdings = tuple(
            Holding(
                roots=tuple(sorted(known[name] for name in share["roots"])),
                place=int(share["replica"][0]),
                copies=int(share["replica"][1]),
                relations=frozenset(known[name] for name in share["relations"]),
                node_types=frozenset(share["node_types"]),
                part=Part(*map(int, share.get("part", WHOLE))),
                held={name: int(count) for name, count in share.get("held", {}).items()},
            )
            for share in meta["servers"]
        )
        roots = meta["target"], *meta.get("others", ())
        fits = roots == schema.root_types and len(holdings) == description["servers"]
        fits = fits and isinstance(meta["layers"], int)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise GraphError(f"{where}: field 'meta': cannot be read: {error!r}") from None
    types = set(schema.node_types)
    if not fits or not all(holding.node_types <= types for holding in holdings):
        raise GraphError(f"{where}: field 'meta': does not fit graph.json and field 'servers'")
    return holdings
