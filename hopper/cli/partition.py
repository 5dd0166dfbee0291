"""``hopper partition``: divide a graph directory over servers."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

from hopper.cli.options import CommandParser, seed, whole
from hopper.errors import RequestError
from hopper.process.quick_imports import quick_imports


class Option(NamedTuple):
    """An option of the command."""

    help: str
    metavar: str | None = None
    default: Any = None
    type: Callable[[str], Any] = str


OF_RELATIONS: Final[dict[str, Option]] = {
    "layers": Option("the most hops that models read (default 2)", "K", type=whole),
    "server_memory": Option(
        "cut relations that need more memory on a server, such as 16G (default: no cut)", "SIZE"
    ),
    "tables": Option(
        "link to files of the graph where possible (default), or copy them", "link|copy"
    ),
}
"""The options that only the method that divides relations reads, besides ``--metapath``."""

OF_NODES: Final[dict[str, Option]] = {
    "method_options": Option(
        "your own class: keyword arguments, as a TOML table", "{KEY = VALUE, ...}", "{}"
    ),
    "seed": Option("seed (default 0)", "K", 0, seed),
    "backend": Option("library for METIS: auto (dgl if installed), dgl or pymetis", default="auto"),
    "topology": Option(
        "replicated (default): each server stores all edges; partitioned: the in-edges of its "
        "nodes",
        default="replicated",
    ),
    "features": Option(
        "by-node (default), or by-dimension: each server stores some columns of all nodes' "
        "features, for an engine such as the baseline p3",
        default="by-node",
    ),
    "on": Option(
        "where to build the parts of servers: in this process (default), in Ray tasks on this "
        "machine, or on the Ray cluster at an address",
        "local|ray[:HOST:PORT]",
        "local",
    ),
    "workers": Option("--on ray: tasks at a time (default: all CPUs)", "N", type=whole),
    "locality_fanouts": Option(
        "fanouts for measuring R_micro and R_sub (default 10,10)", "F,F,...", "10,10"
    ),
    "locality_roots": Option(
        "training roots for measuring them (default 2000; 0 = do not measure)", "N", 2000, whole
    ),
}
"""The options that only methods that divide nodes read."""


def add_options(parser: CommandParser) -> None:
    """Add the options of the command."""
    parser.description = "Divide a graph directory over servers and write a partitioned directory."
    parser.option("graph DIR", "graph directory", type=Path)
    parser.option("--servers P", "number of servers", type=whole, required=True)
    parser.option(
        "--method",
        "how to divide: metis (default), stream, random, given (by servers/TYPE.npy in DIR), meta "
        "or package.module:Class",
        default="metis",
    )
    parser.option(
        "--like PARTS",
        "keep nodes that this partitioned directory knows by name on their servers, and place new "
        "ones beside their neighbours",
        type=Path,
    )
    parser.option("--out DIR", "where to write", type=Path, required=True)
    parser.option(
        "--feature-dtype [TABLE=]DTYPE",
        "store features as float32, float16, bfloat16 or int8 with a scale a row (default: as "
        "they are); may be repeated",
        several=True,
    )
    parser.option(
        "--memory-limit SIZE", "the most memory to use, such as 4G; work that needs more is refused"
    )
    for prefix, options in (("", OF_NODES), ("meta: ", OF_RELATIONS)):
        for name, option in options.items():
            settings = option._asdict() | {"help": prefix + option.help}
            parser.add_argument(f"--{name.replace('_', '-')}", **settings)
    parser.metapath_option("meta: ")
    parser.option("--json", "print partition.json only")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    # The options do not need the libraries that dividing needs.
    with quick_imports():
        from hopper.cli.partition_run import divide
        from hopper.partition.partitioner import BY_RELATION

    if arguments.like is not None:
        if arguments.method != "metis":
            raise RequestError(f"--like: expected no --method beside it, given {arguments.method}")
        arguments.method = "like"
    _refuse_unread(arguments, BY_RELATION)
    return divide(arguments)


def _refuse_unread(arguments: argparse.Namespace, by_relation: str) -> None:
    """Refuse options that the method does not read, unless they have their defaults."""
    method = arguments.method
    if method == by_relation:
        unread, why = dict(OF_NODES), f"--method {method} does not read it"
    else:
        unread = OF_RELATIONS | {"metapath": Option("", default=[])}
        why = f"only --method {by_relation} reads it, not {method}"
    for name, option in unread.items():
        if getattr(arguments, name) != option.default:
            raise RequestError(f"--{name.replace('_', '-')}: {why}")
