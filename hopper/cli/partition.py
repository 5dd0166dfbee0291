"""``hopper partition``: divide a graph directory over servers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from hopper.cli.options import CommandParser, seed, whole
from hopper.errors import RequestError
from hopper.process.quick_imports import quick_imports

OF_NODES: Final = (
    "method_options",
    "seed",
    "backend",
    "topology",
    "features",
    "on",
    "workers",
    "locality_fanouts",
    "locality_roots",
)
"""The options that only methods that divide nodes read."""
OF_RELATIONS: Final = ("layers", "server_memory", "tables", "metapath")
"""The options that only the method that divides relations reads."""


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
    parser.option(
        "--method-options {KEY = VALUE, ...}",
        "your own class: keyword arguments, as a TOML table",
        default="{}",
    )
    parser.option("--seed K", "seed (default 0)", type=seed, default=0)
    parser.option(
        "--backend", "library for METIS: auto (dgl if installed), dgl or pymetis", default="auto"
    )
    parser.option(
        "--topology",
        "replicated (default): each server stores all edges; partitioned: the in-edges of its "
        "nodes",
        default="replicated",
    )
    parser.option(
        "--features",
        "by-node (default), or by-dimension: each server stores some columns of all nodes' "
        "features, for an engine such as the baseline p3",
        default="by-node",
    )
    parser.option(
        "--on local|ray[:HOST:PORT]",
        "where to build the parts of servers: in this process (default), in Ray tasks on this "
        "machine, or on the Ray cluster at an address",
        default="local",
    )
    parser.option("--workers N", "--on ray: tasks at a time (default: all CPUs)", type=whole)
    parser.option(
        "--locality-fanouts F,F,...",
        "fanouts for measuring R_micro and R_sub (default 10,10)",
        default="10,10",
    )
    parser.option(
        "--locality-roots N",
        "training roots for measuring them (default 2000; 0 = do not measure)",
        type=whole,
        default=2000,
    )
    parser.option("--layers K", "meta: the most hops that models read (default 2)", type=whole)
    parser.option(
        "--server-memory SIZE",
        "meta: cut relations that need more memory on a server, such as 16G (default: no cut)",
    )
    parser.option(
        "--tables link|copy",
        "meta: link to files of the graph where possible (default), or copy them",
    )
    parser.metapath_option("meta: ")
    parser.option("--json", "print partition.json only")
    defaults = {name: parser.get_default(name) for name in (*OF_NODES, *OF_RELATIONS)}
    parser.set_defaults(run=_run, defaults=defaults)


def _run(arguments: argparse.Namespace) -> int:
    # The options do not need the libraries that dividing needs.
    with quick_imports():
        from hopper.cli.partition_run import divide
        from hopper.partition.partitioner import BY_RELATION

    if arguments.like is not None:
        if arguments.method != "metis":
            raise RequestError(f"--like: expected no --method beside it, given {arguments.method}")
        arguments.method = "like"
    by_relation = arguments.method == BY_RELATION
    why = f"only --method {BY_RELATION} reads it, not {arguments.method}"
    if by_relation:
        why = f"--method {BY_RELATION} does not read it"
    for name in OF_NODES if by_relation else OF_RELATIONS:
        if getattr(arguments, name) != arguments.defaults[name]:
            raise RequestError(f"--{name.replace('_', '-')}: {why}")
    return divide(arguments)
