"""partition.json: what a partitioned directory says of itself, read and written here alone."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hopper.errors import GraphError
from hopper.graph.json_file import read_json
from hopper.graph.schema import GraphSchema, Relation
from hopper.partition.book import PartitionBook
from hopper.partition.file_names import DESCRIPTION_FILE

PARTITION_SCHEMA_VERSION: Final = 2
"""Version 1 stores every source and edge id in 64 bits, and is still opened."""


class Part(NamedTuple):
    """The part of its root relation's edges that a server stores."""

    place: int
    """index of the part"""
    parts: int
    """number of parts"""


WHOLE: Final = Part(0, 1)


@dataclass(frozen=True)
class ServerPartition:
    """The part of a graph divided by relation that one server stores.

    Attributes
    ----------
    roots: the root relations that it aggregates, in canonical order.
    place, copies: the server's index among those with the same root relations, and their number.
    relations, node_types: all relations and node types that it stores.
    part: its part of a root relation's edges. With several parts there is one root relation.
    stored: number of nodes by type whose rows it stores, if it has one of several parts.
    """

    roots: tuple[Relation, ...]
    place: int
    copies: int
    relations: frozenset[Relation]
    node_types: frozenset[str]
    part: Part = WHOLE
    stored: Mapping[str, int] = field(default_factory=dict)


class _Model(BaseModel):
    model_config = ConfigDict(strict=True)


class ServerEntry(_Model):
    """What is said of one server, where relations are divided."""

    roots: list[str]
    replica: list[int] = Field(min_length=2, max_length=2)
    part: list[int] = Field([*WHOLE], min_length=2, max_length=2)
    relations: list[str]
    node_types: list[str]
    held: dict[str, int] = {}


class MetaEntry(_Model):
    """How relations are divided."""

    target: str
    others: list[str] = []
    layers: int
    servers: list[ServerEntry]


class Description(_Model):
    """The fields that opening a directory reads; the others are for people."""

    version: int = Field(alias="schema", ge=1, le=PARTITION_SCHEMA_VERSION)
    method: str
    servers: int
    offsets: dict[str, list[int]]
    edge_offsets: dict[str, list[int]] = {}
    topology: Literal["replicated", "partitioned", "by_dimension", "by_relation"]
    halo: int = Field(0, ge=0)
    ranks_per_server: int = 1
    reverse_relations: dict[str, list[str]] = {}
    meta: MetaEntry | None = None

    def book(self, schema: GraphSchema, where: str) -> PartitionBook:
        """Make the partition book, and refuse one that does not fit the schema."""
        with_features = {str(r) for r, kind in schema.relations.items() if kind.feature_dim}
        of_edges = "relations whose edges have features"
        for name, what, expected, offsets in (
            ("offsets", "node types", set(schema.node_types), self.offsets),
            ("edge_offsets", of_edges, with_features, self.edge_offsets),
        ):
            if set(offsets) != expected:
                raise GraphError(
                    f"{where}: field {name!r}: expected the {what} {sorted(expected)}, found "
                    f"{sorted(offsets)}; write it anew with `hopper partition`"
                )
        book = PartitionBook(self.servers, {**self.offsets, **self.edge_offsets}, where)
        for name in sorted(book.offsets):
            count, total = schema.table(name).count, book.total(name)
            if total != count:
                kind = "offsets" if name in self.offsets else "edge_offsets"
                raise GraphError(
                    f"{where}: field '{kind}.{name}': expected to end at {count} (graph.json), "
                    f"found {total}"
                )
        return book

    def partitions(self, schema: GraphSchema, where: str) -> Sequence[ServerPartition]:
        """Return what every server stores, where relations are divided."""
        known, meta = {str(relation): relation for relation in schema.relations}, self.meta
        fits = meta is not None and (meta.target, *meta.others) == schema.root_types
        if meta is None or not fits or len(meta.servers) != self.servers:
            raise GraphError(f"{where}: field 'meta': does not fit graph.json and field 'servers'")
        for entry in meta.servers:
            unknown = {*entry.roots, *entry.relations} - set(known)
            unknown |= {*entry.node_types} - set(schema.node_types)
            if unknown:
                raise GraphError(f"{where}: field 'meta': does not fit graph.json: {unknown}")
        return tuple(
            ServerPartition(
                roots=tuple(sorted(known[name] for name in entry.roots)),
                place=entry.replica[0],
                copies=entry.replica[1],
                relations=frozenset(known[name] for name in entry.relations),
                node_types=frozenset(entry.node_types),
                part=Part(*entry.part),
                stored=entry.held,
            )
            for entry in meta.servers
        )


def read_description(path: Path) -> tuple[dict[str, Any], Description]:
    """Read a directory's whole description, and the fields that opening it needs."""
    file = path / DESCRIPTION_FILE
    content = read_json(file, "no such file; write a partitioned directory with `hopper partition`")
    try:
        return content, Description.model_validate(content)
    except ValidationError as error:
        problem = error.errors()[0]
        name, given = ".".join(map(str, problem["loc"])), problem["input"]
        found = "nothing" if problem["type"] == "missing" else repr(given)
        raise GraphError(f"{file}: field {name!r}: {problem['msg']}, found {found:.200}") from None


def write_description(folder: Path, description: Mapping[str, Any]) -> None:
    """Write or replace partition.json in one step."""
    file = folder / DESCRIPTION_FILE
    temporary = file.with_name(f".{DESCRIPTION_FILE}.{os.getpid()}")
    temporary.write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    temporary.replace(file)
