"""partition.json, which says of a partitioned directory what it is, and the names of its files."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from hopper.errors import GraphError
from hopper.files.whole_files import write_text
from hopper.graph.json_file import parse_json, read_json
from hopper.graph.schema import GraphSchema, Relation
from hopper.partition.placement import PartitionBook

PARTITION_SCHEMA_VERSION: Final = 2
DESCRIPTION_FILE: Final = "partition.json"
ROOTS_FOLDER: Final = "roots"
"""Name of the folder, in a server's folder, with its part of a root relation's edges into roots."""
MapName = Literal["original_ids", "global_ids"]
MAP_NAMES: Final[tuple[MapName, ...]] = get_args(MapName)


def server_folder(path: Path, server: int) -> Path:
    """Return the folder of the files that only one server needs."""
    return path / f"server-{server}"


def stored_ids_file(folder: Path, node_type: str) -> Path:
    """Return the file of the ids whose rows a server stores, if it stores some of a type's rows."""
    return folder / "held" / f"{node_type}.npy"


def map_file(path: Path, node_type: str, name: MapName) -> Path:
    """Return the file of one of a node type's two maps."""
    return path / "maps" / node_type / f"{name}.npy"


class Part(NamedTuple):
    """The part of its root relation's edges that a server stores."""

    shard_index: int
    num_shards: int


WHOLE: Final = Part(0, 1)


@dataclass(frozen=True)
class ServerPartition:
    """The part of a graph divided by relation that one server stores."""

    roots: tuple[Relation, ...]
    """the root relations that it aggregates, in canonical order"""
    place: int
    """its index among the servers with the same root relations"""
    copies: int
    """their number"""
    relations: frozenset[Relation]
    node_types: frozenset[str]
    part: Part = WHOLE
    """with several parts there is one root relation"""
    stored: Mapping[str, int] = field(default_factory=dict)
    """by type, number of nodes whose rows it stores, if it has one of several parts"""
    nodes: int = 0
    edges: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether it has all edges of its root relations."""
        return self.part.num_shards == 1

    def as_json(self) -> dict[str, Any]:
        """Return its entry in partition.json, which :class:`ServerEntry` reads."""
        return {
            "roots": [str(relation) for relation in self.roots],
            "replica": [self.place, self.copies],
            "part": list(self.part),
            "held": dict(self.stored),
            "relations": [str(relation) for relation in sorted(self.relations)],
            "node_types": sorted(self.node_types),
            "nodes": self.nodes,
            "edges": self.edges,
        }


class _Model(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True)


class ServerEntry(_Model):
    """What is said of one server, where relations are divided."""

    roots: list[str]
    replica: list[int] = Field(min_length=2, max_length=2)
    part: list[int] = Field([*WHOLE], min_length=2, max_length=2)
    relations: list[str]
    node_types: list[str]
    held: dict[str, int] = {}
    nodes: int = 0
    edges: int = 0


class MetaEntry(_Model):
    """How relations are divided."""

    target: str
    others: list[str] = []
    layers: int
    servers: list[ServerEntry]


class Description(_Model):
    """The fields that opening a directory reads; the others are for people."""

    version: Literal[2] = Field(alias="schema")
    method: str
    servers: int
    offsets: dict[str, list[int]]
    edge_offsets: dict[str, list[int]] = {}
    topology: Literal["replicated", "partitioned", "by_dimension", "by_relation"]
    halo: Literal[0] = 0
    """hops of a halo, which earlier versions could write, and which are not read any more"""
    reverse_relations: dict[str, list[str]] = {}
    meta: MetaEntry | None = None

    def book(self, schema: GraphSchema, where: str) -> PartitionBook:
        """Make the partition book, and refuse one that does not fit the schema."""
        nodes = {name: kind.count for name, kind in schema.node_types.items()}
        edges = {str(r): kind.count for r, kind in schema.relations.items() if kind.feature_dim}
        book = PartitionBook(self.servers, {**self.offsets, **self.edge_offsets}, where)
        for field_name, what, offsets, counts in (
            ("offsets", "node types", self.offsets, nodes),
            ("edge_offsets", "relations whose edges have features", self.edge_offsets, edges),
        ):
            if set(offsets) != set(counts):
                raise GraphError(
                    f"{where}: field {field_name!r}: expected the {what} {sorted(counts)}, found "
                    f"{sorted(offsets)}; write it anew with `hopper partition`"
                )
            for name, count in counts.items():
                if book.total(name) != count:
                    raise GraphError(
                        f"{where}: field '{field_name}.{name}': expected to end at {count} "
                        f"(graph.json), found {book.total(name)}"
                    )
        return book

    def partitions(self, schema: GraphSchema, where: str) -> Sequence[ServerPartition]:
        """Return what every server stores, where relations are divided."""
        text = f"{where}: field 'meta': does not fit graph.json and field 'servers'"
        meta, known = self.meta, {str(relation): relation for relation in schema.relations}
        fits = meta is not None and (meta.target, *meta.others) == schema.root_types
        if meta is None or not fits or len(meta.servers) != self.servers:
            raise GraphError(text)
        types = {name: name for name in schema.node_types}
        try:
            return tuple(
                ServerPartition(
                    tuple(sorted(known[name] for name in entry.roots)),
                    entry.replica[0],
                    entry.replica[1],
                    frozenset(known[name] for name in entry.relations),
                    frozenset(types[name] for name in entry.node_types),
                    Part(*entry.part),
                    entry.held,
                    entry.nodes,
                    entry.edges,
                )
                for entry in meta.servers
            )
        except KeyError as error:
            raise GraphError(f"{text}: unknown {error}") from None


_DESCRIPTION: Final = TypeAdapter(Description)


def read_description(path: Path) -> tuple[dict[str, Any], Description]:
    """Read a directory's whole description, and the fields that opening it needs."""
    file = path / DESCRIPTION_FILE
    content = read_json(file, "no such file; write a partitioned directory with `hopper partition`")
    return content, parse_json(_DESCRIPTION, content, str(file))


def write_description(folder: Path, description: Mapping[str, Any]) -> None:
    """Write or replace partition.json in one step."""
    write_text(folder / DESCRIPTION_FILE, json.dumps(description, indent=2) + "\n")
