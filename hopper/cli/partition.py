"""``hopper partition``: divide a graph directory over servers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from hopper.cli.metapaths import add_metapath_option
from hopper.cli.numbers import seed, whole
from hopper.quick_imports import quick_imports

OF_NODES: Final[dict[str, Any]] = {
    "method_options": "{}",
    "seed": 0,
    "backend": "auto",
    "balance": "",
    "refine": None,
    "refine_fanouts": None,
    "refine_epochs": None,
    "topology": "replicated",
    "features": "by-node",
    "ranks_per_server": 1,
    "on": "local",
    "workers": None,
    "locality_fanouts": "10,10",
    "locality_roots": 2000,
}
"""The defaults of the options that only methods that divide nodes read."""
OF_RELATIONS: Final = (
    "layers",
    "target",
    "metapath",
    "weights",
    "weights_fanouts",
    "server_memory",
    "tables",
)
"""The options that only the method that divides relations reads."""


def add_parser(commands: Any, text: str = "") -> None:
    """Add the subcommand. ``text`` describes it in the list of commands."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "partition",
        help=text,
        description="Divide a graph directory over servers and write a partitioned directory.",
    )
    parser.add_argument("graph", type=Path, metavar="DIR", help="graph directory")
    parser.add_argument(
        "--servers", type=whole, required=True, metavar="P", help="number of servers"
    )
    parser.add_argument(
        "--method",
        default="metis",
        help="how to divide: metis (default), stream, random, meta or package.module:Class",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write")
    _add_options_of_meta(parser)
    _add_options_of_nodes(parser)
    _add_options_of_storage(parser)
    _add_options_of_locality(parser)
    parser.add_argument("--json", action="store_true", help="print partition.json only")
    parser.set_defaults(run=_run)


def _add_options_of_meta(parser: argparse.ArgumentParser) -> None:
    """Add the options that only ``--method meta`` reads."""
    parser.add_argument(
        "--layers", type=whole, metavar="K", help="meta: the most hops that models read (default 2)"
    )
    parser.add_argument("--target", metavar="T", help="meta: type of roots (default: the graph's)")
    add_metapath_option(parser, "meta: ")
    parser.add_argument(
        "--weights",
        metavar="counts|sampled",
        help="meta: weigh sub-metatrees by counts (default), or by what sampling reads",
    )
    parser.add_argument(
        "--weights-fanouts",
        metavar="F,F,...",
        help="meta, weights sampled: in-neighbours per relation, one number per hop (default 10)",
    )
    parser.add_argument(
        "--server-memory",
        metavar="SIZE",
        help="meta: cut relations that need more memory on a server, such as 16G (default: no cut)",
    )
    parser.add_argument(
        "--tables",
        metavar="link|copy",
        help="meta: link to files of the graph where possible (default), or copy them",
    )


def _add_options_of_nodes(parser: argparse.ArgumentParser) -> None:
    """Add the options of methods that divide nodes."""
    parser.add_argument(
        "--method-options",
        default=OF_NODES["method_options"],
        metavar="{KEY = VALUE, ...}",
        help="your own class: keyword arguments, as a TOML table",
    )
    parser.add_argument(
        "--seed", type=seed, default=OF_NODES["seed"], metavar="K", help="seed (default 0)"
    )
    parser.add_argument(
        "--backend",
        default=OF_NODES["backend"],
        help="library for METIS: auto (dgl if installed), dgl or pymetis",
    )
    parser.add_argument(
        "--balance",
        default=OF_NODES["balance"],
        metavar="WHAT,...",
        help="metis of dgl: what to balance: names of splits (train,val,test), types, edges "
        "(default: training nodes, and other nodes by type, each with their degrees)",
    )
    parser.add_argument(
        "--refine",
        metavar="visits",
        help="then move nodes to the servers whose roots read them most in sampled epochs",
    )
    parser.add_argument(
        "--refine-fanouts",
        metavar="F,F,...",
        help="visits: in-neighbours per relation, one number per hop (default 10,10)",
    )
    parser.add_argument(
        "--refine-epochs", type=whole, metavar="N", help="visits: sampled epochs (default 2)"
    )
    parser.add_argument(
        "--ranks-per-server",
        type=whole,
        default=OF_NODES["ranks_per_server"],
        metavar="R",
        help="also divide a server's nodes over R ranks by locality (metis and stream; default 1)",
    )


def _add_options_of_storage(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what servers store, and how much memory may be used."""
    parser.add_argument(
        "--topology",
        default=OF_NODES["topology"],
        help="replicated (default): each server stores all edges; partitioned: the in-edges of its "
        "nodes; halo:K: also those of nodes within K hops of them (halo:0 is partitioned)",
    )
    parser.add_argument(
        "--features",
        default=OF_NODES["features"],
        help="by-node (default), or by-dimension: each server stores some columns of all nodes' "
        "features, for train.engine = p3",
    )
    parser.add_argument(
        "--feature-dtype",
        action="append",
        default=[],
        metavar="[TABLE=]DTYPE",
        help="store features as float32, float16, bfloat16 or int8 with a scale a row (default: as "
        "they are); may be repeated",
    )
    parser.add_argument(
        "--memory-limit",
        metavar="SIZE",
        help="the most memory to use, such as 4G; work that needs more is refused",
    )
    parser.add_argument(
        "--on",
        default=OF_NODES["on"],
        metavar="local|ray[:HOST:PORT]",
        help="where to build the parts of servers: in this process (default), in Ray tasks on this "
        "machine, or on the Ray cluster at an address",
    )
    parser.add_argument(
        "--workers", type=whole, metavar="N", help="--on ray: tasks at a time (default: all CPUs)"
    )


def _add_options_of_locality(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how locality is measured."""
    parser.add_argument(
        "--locality-fanouts",
        default=OF_NODES["locality_fanouts"],
        metavar="F,F,...",
        help="fanouts for measuring R_micro and R_sub (default 10,10)",
    )
    parser.add_argument(
        "--locality-roots",
        type=whole,
        default=OF_NODES["locality_roots"],
        metavar="N",
        help="training roots for measuring them (default 2000; 0 = do not measure)",
    )


def _run(arguments: argparse.Namespace) -> int:
    # The options do not need the libraries that dividing needs.
    with quick_imports():
        from hopper.cli.partition_run import divide

    return divide(arguments)
