"""``hopper partition``: divide a graph directory over servers."""

from __future__ import annotations

import argparse
import tomllib
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from hopper.cli.metapaths import add_metapath_option, split_metapaths
from hopper.cli.numbers import seed, whole
from hopper.cli.partition_report import show_by_relation, show_division, show_estimate, tell
from hopper.cli.phases import show_progress
from hopper.config.bounds import is_fanout, parse_size
from hopper.errors import HopperError, RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.piece_size import limit_pieces
from hopper.graph.publish import refuse_occupied
from hopper.hetero.divide import divide_graph
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.assign import BY_RELATION, check_method
from hopper.partition.memory import choose_pieces, format_bytes, locality_bytes
from hopper.partition.ray_workers import open_workers
from hopper.partition.refine import Refiner
from hopper.partition.second_level import check_ranks

_OF_NODES: Final[dict[str, Any]] = {
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
_OF_RELATIONS: Final = (
    "layers",
    "target",
    "metapath",
    "weights",
    "weights_fanouts",
    "server_memory",
    "tables",
)
"""what only the method that divides relations reads"""


def add_parser(subparsers: Any) -> None:
    """Add the ``partition`` command to an argparse subparsers object."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "partition",
        help="divide a graph directory over servers",
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
    parser.set_defaults(run=run)


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
        default=_OF_NODES["method_options"],
        metavar="{KEY = VALUE, ...}",
        help="of a class of one's own: keywords of its constructor, as a TOML table",
    )
    parser.add_argument(
        "--seed", type=seed, default=_OF_NODES["seed"], metavar="K", help="default 0"
    )
    parser.add_argument(
        "--backend",
        default=_OF_NODES["backend"],
        help="METIS of: auto (dgl if installed), dgl or pymetis",
    )
    parser.add_argument(
        "--balance",
        default=_OF_NODES["balance"],
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
        default=_OF_NODES["ranks_per_server"],
        metavar="R",
        help="divide a server's nodes over R ranks too, by locality (metis and stream; default 1)",
    )


def _add_options_of_storage(parser: argparse.ArgumentParser) -> None:
    """What servers store of what, and the memory that may be used."""
    parser.add_argument(
        "--topology",
        default=_OF_NODES["topology"],
        help="replicated (default); partitioned: a server stores the in-edges of its own nodes; or "
        "halo:K: also of those within K hops of them (halo:0 is partitioned)",
    )
    parser.add_argument(
        "--features",
        default=_OF_NODES["features"],
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
        default=_OF_NODES["on"],
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
        default=_OF_NODES["locality_fanouts"],
        metavar="F,F,...",
        help="fanouts that R_micro and R_sub are measured with (default 10,10)",
    )
    parser.add_argument(
        "--locality-roots",
        type=whole,
        default=_OF_NODES["locality_roots"],
        metavar="N",
        help="training roots that they are measured on (default 2000; 0 = not measured)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Carry out ``hopper partition``; returns the exit code.

    Raises
    ------
    HopperError: a request that cannot be carried out, or a damaged graph directory.
    """
    if arguments.method == BY_RELATION:
        return _run_by_relation(arguments)
    options = _options(arguments.method_options)
    check_method(arguments.servers, arguments.method, options)
    check_ranks(arguments.ranks_per_server, arguments.method)
    for name in _OF_RELATIONS:
        if getattr(arguments, name) not in (None, []):
            option = name.replace("_", "-")
            raise RequestError(f"--{option}: only --method meta reads it, not {arguments.method}")
    refuse_occupied(arguments.out)
    fanouts = _fanouts("locality-fanouts", arguments.locality_fanouts)
    if arguments.locality_roots < 0:
        raise RequestError(
            f"--locality-roots: expected at least 0, given {arguments.locality_roots}"
        )
    limit = _size("memory-limit", arguments.memory_limit)
    console, progress = show_progress()
    with limit_pieces(choose_pieces(limit)):
        graph = GraphDirectory.open(arguments.graph)
    measure = partial(_measure_locality, fanouts, arguments, limit, console)
    with open_workers(arguments.on, arguments.workers) as workers:
        result = partition_graph(
            graph,
            arguments.out,
            arguments.servers,
            arguments.method,
            arguments.seed,
            method_options=options,
            backend=arguments.backend,
            balance=arguments.balance.split(",") if arguments.balance else (),
            refiner=_refiner(arguments),
            topology=arguments.topology,
            features=arguments.features,
            feature_dtypes=arguments.feature_dtype,
            ranks_per_server=arguments.ranks_per_server,
            memory_limit=limit,
            workers=workers,
            progress=progress,
            on_estimate=partial(show_estimate, console),
            measure=measure if arguments.locality_roots else None,
        )
    tell(result, arguments, show_division)
    return 0


def _run_by_relation(arguments: argparse.Namespace) -> int:
    """Carry out ``hopper partition --method meta``; returns the exit code."""
    for name, default in _OF_NODES.items():
        if getattr(arguments, name) != default:
            raise RequestError(f"--{name.replace('_', '-')}: --method meta does not read it")
    weights_fanouts = _weights_fanouts(arguments)
    limit = _size("memory-limit", arguments.memory_limit)
    console, progress = show_progress()
    with limit_pieces(choose_pieces(limit)):
        graph = GraphDirectory.open(arguments.graph)
    result = divide_graph(
        graph,
        arguments.out,
        arguments.servers,
        BY_RELATION,
        layers=arguments.layers,
        target=arguments.target,
        metapaths=split_metapaths(arguments.metapath),
        weights_fanouts=weights_fanouts,
        server_memory=_size("server-memory", arguments.server_memory),
        tables=arguments.tables,
        feature_dtypes=arguments.feature_dtype,
        memory_limit=limit,
        on_estimate=partial(show_estimate, console),
        progress=progress,
    )
    tell(result, arguments, show_by_relation)
    return 0


def _options(text: str) -> dict[str, Any]:
    try:
        options = tomllib.loads(f"options = {text}")["options"]
    except tomllib.TOMLDecodeError:
        options = None
    if not isinstance(options, dict):
        raise RequestError(
            f"--method-options: expected a TOML table such as {{key = 1}}, given {text!r:.100}"
        )
    return options


def _size(option: str, text: str | None) -> int | None:
    return parse_size(text, f"--{option}") if text else None


def _measure_locality(
    fanouts: list[int],
    arguments: argparse.Namespace,
    limit: int | None,
    console: Console,
    graph: PartitionedGraph,
) -> dict[str, Any] | None:
    """R_micro and R_sub; None where there is nothing to measure."""
    needed = locality_bytes(graph.schema)
    if limit is not None and limit < needed:
        console.print(
            f"locality not measured: it needs about {format_bytes(needed)} of memory, "
            f"{format_bytes(limit)} are allowed by --memory-limit"
        )
        return None
    from hopper.micrograph.locality import measure_locality

    target = graph.schema.target_type()
    if graph.book.total(target) == 0:
        console.print(f"locality not measured: node type {target!r} has no nodes")
        return None
    roots, seed = arguments.locality_roots, arguments.seed
    try:
        return measure_locality(graph, fanouts, roots, seed=seed).as_json()
    except (HopperError, MemoryError) as error:
        # The division is worth more than its measurement.
        console.print(f"locality not measured: {error or 'out of memory'}")
        return None


def _weights_fanouts(arguments: argparse.Namespace) -> list[int] | None:
    """Fanouts to weigh by; None = weights are counts."""
    weights, given = arguments.weights, arguments.weights_fanouts
    if weights not in (None, "counts", "sampled"):
        raise RequestError(f"--weights: expected counts or sampled, given {weights!r}")
    if weights != "sampled":
        if given is not None:
            raise RequestError("--weights-fanouts: only --weights sampled reads it")
        return None
    if given is None:
        return [10] * (2 if arguments.layers is None else arguments.layers)
    return _fanouts("weights-fanouts", given)


def _refiner(arguments: argparse.Namespace) -> Refiner | None:
    """What moves nodes after the method; None = nothing does."""
    fanouts, epochs = arguments.refine_fanouts, arguments.refine_epochs
    if arguments.refine is None:
        for option, given in (("fanouts", fanouts), ("epochs", epochs)):
            if given is not None:
                raise RequestError(f"--refine-{option}: only --refine visits reads it")
        return None
    if arguments.refine != "visits":
        raise RequestError(f"--refine: expected visits, given {arguments.refine!r:.100}")
    from hopper.hetero.refine_by_visits import VisitRefiner

    hops = _fanouts("refine-fanouts", "10,10" if fanouts is None else fanouts)
    return VisitRefiner(tuple(hops), arguments.seed, 2 if epochs is None else epochs)


def _fanouts(option: str, text: str) -> list[int]:
    try:
        fanouts = [int(part) for part in text.split(",")]
    except ValueError:
        fanouts = []
    if not fanouts or not all(map(is_fanout, fanouts)):
        raise RequestError(
            f"--{option}: expected positive numbers below 2**31 (or -1 for all neighbours) "
            f"between commas, given {text!r:.100}"
        )
    return fanouts
