"""``hopper partition``: divide a graph directory over servers."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Final

from hopper.cli.metapaths import add_metapath_option
from hopper.cli.numbers import seed, whole

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
"""defaults of what only methods that divide nodes read"""
OF_RELATIONS: Final = (
    "layers",
    "target",
    "metapath",
    "weights",
    "weights_fanouts",
    "server_memory",
    "tables",
)
"""what only the method that divides relations reads"""


def add_parser(commands: Any, text: str = "") -> None:
    """Add the subcommand; ``text`` says in the list of commands what it does."""
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
        help="metis (default), stream, random or meta, or package.module:Class",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where to write")
    _add_options_of_meta(parser)
    _add_options_of_nodes(parser)
    _add_options_of_storage(parser)
    _add_options_of_locality(parser)
    parser.add_argument("--json", action="store_true", help="print partition.json only")
    parser.set_defaults(run=_run)


def _add_options_of_meta(parser: argparse.ArgumentParser) -> None:
    """What only ``--method meta`` reads."""
    parser.add_argument(
        "--layers", type=whole, metavar="K", help="meta: hops that models read at most (default 2)"
    )
    parser.add_argument("--target", metavar="T", help="meta: type of the roots (the graph's own)")
    add_metapath_option(parser, "meta: ")
    parser.add_argument(
        "--weights",
        metavar="counts|sampled",
        help="meta: weigh sub-metatrees by what is stored (default), or by what sampling meets",
    )
    parser.add_argument(
        "--weights-fanouts",
        metavar="F,F,...",
        help="meta, sampled weights: in-neighbours per relation, one number per hop (default 10)",
    )
    parser.add_argument(
        "--server-memory",
        metavar="SIZE",
        help="meta: cut what takes more on a server, e.g. 16G (default: nothing)",
    )
    parser.add_argument(
        "--tables",
        metavar="link|copy",
        help="meta: link whole files to the graph's where possible (default), or copy them",
    )


def _add_options_of_nodes(parser: argparse.ArgumentParser) -> None:
    """How methods that divide nodes place them."""
    parser.add_argument(
        "--method-options",
        default=OF_NODES["method_options"],
        metavar="{KEY = VALUE, ...}",
        help="of a class of one's own: keywords of its constructor, as a TOML table",
    )
    parser.add_argument(
        "--seed", type=seed, default=OF_NODES["seed"], metavar="K", help="default 0"
    )
    parser.add_argument(
        "--backend",
        default=OF_NODES["backend"],
        help="METIS of: auto (dgl if installed), dgl or pymetis",
    )
    parser.add_argument(
        "--balance",
        default=OF_NODES["balance"],
        metavar="WHAT,...",
        help="metis of dgl: balance these: the graph's splits by name (train,val,test), types, "
        "edges (default: training nodes, and other nodes by type, each with their degrees)",
    )
    parser.add_argument(
        "--refine",
        metavar="visits",
        help="then move nodes to the servers whose roots read them, by presampled epochs",
    )
    parser.add_argument(
        "--refine-fanouts",
        metavar="F,F,...",
        help="visits: in-neighbours per relation, one number per hop (default 10,10)",
    )
    parser.add_argument(
        "--refine-epochs", type=whole, metavar="N", help="visits: epochs that count (default 2)"
    )
    parser.add_argument(
        "--ranks-per-server",
        type=whole,
        default=OF_NODES["ranks_per_server"],
        metavar="R",
        help="divide a server's nodes over R ranks too, by locality (metis and stream; default 1)",
    )


def _add_options_of_storage(parser: argparse.ArgumentParser) -> None:
    """What servers store of what, and the memory that may be used."""
    parser.add_argument(
        "--topology",
        default=OF_NODES["topology"],
        help="replicated (default); partitioned: a server stores the in-edges of its own nodes; or "
        "halo:K: also of those within K hops of them (halo:0 is partitioned)",
    )
    parser.add_argument(
        "--features",
        default=OF_NODES["features"],
        help="by-node (default), or by-dimension: a server stores some columns of all nodes' "
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
    parser.add_argument("--memory-limit", metavar="SIZE", help="stay below it, or refuse; e.g. 4G")
    parser.add_argument(
        "--on",
        default=OF_NODES["on"],
        metavar="local|ray[:HOST:PORT]",
        help="build servers' parts in this process (default), in tasks of Ray on this machine, or "
        "of the Ray cluster at an address",
    )
    parser.add_argument(
        "--workers", type=whole, metavar="N", help="of --on ray: tasks at a time (default: CPUs)"
    )


def _add_options_of_locality(parser: argparse.ArgumentParser) -> None:
    """How the locality of what was divided is measured."""
    parser.add_argument(
        "--locality-fanouts",
        default=OF_NODES["locality_fanouts"],
        metavar="F,F,...",
        help="fanouts that R_micro and R_sub are measured with (default 10,10)",
    )
    parser.add_argument(
        "--locality-roots",
        type=whole,
        default=OF_NODES["locality_roots"],
        metavar="N",
        help="training roots that they are measured on (default 2000; 0 = not measured)",
    )


def _run(arguments: argparse.Namespace) -> int:
    # Dividing takes libraries that its options do not.
    from hopper.cli.partition_run import divide

    return divide(arguments)
