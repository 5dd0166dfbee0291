"""``hopper plan CONFIG.toml``: what every engine would take on a cluster one does not have."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from hopper.cli.numbers import whole
from hopper.console_tables import print_table
from hopper.errors import RequestError

if TYPE_CHECKING:
    from hopper.config import Config
    from hopper.engines import Request
    from hopper.rehearsal.cluster_plan import ClusterPlan
    from hopper.rehearsal.estimate import Estimate
    from hopper.rehearsal.growth import Growth

_MIB = 2**20


def add_parser(commands: Any, text: str = "") -> None:
    """Add the subcommand; ``text`` says in the list of commands what it does."""
    parser = commands.add_parser(
        "plan",
        help=text,
        description="No cluster is started: all its ranks take turns in this process and run a few "
        "iterations of every engine. Any key of the configuration can be overridden as "
        "--section.key VALUE.",
        allow_abbrev=False,
    )
    parser.add_argument("config", metavar="CONFIG.toml")
    parser.add_argument(
        "--servers", type=whole, metavar="P", help="default: as many as the graph's partitions"
    )
    parser.add_argument(
        "--ranks-per-server", type=whole, metavar="R", help="default: cluster.ranks_per_server"
    )
    parser.add_argument(
        "--link-rate", default="10gbit", metavar="RATE",
        help="of every server's link in each direction, such as 100gbit, or none (default 10gbit)",
    )  # fmt: skip
    parser.add_argument(
        "--latency", type=float, default=50.0, metavar="MICROSECONDS",
        help="from a server to another (default 50)",
    )  # fmt: skip
    parser.add_argument(
        "--cores", type=float, metavar="C", help="of every server (default: one a rank)"
    )
    parser.add_argument(
        "--engines", default="", metavar="A,B,...", help="default: all that train such a graph"
    )
    parser.add_argument(
        "--iterations", type=whole, default=3, metavar="K", help="that are rehearsed (default 3)"
    )
    parser.add_argument(
        "--graph", type=Path, metavar="DIR",
        help="a graph directory that is divided over the servers first, in place of "
        "data.partitioned",
    )  # fmt: skip
    parser.add_argument(
        "--method", default="metis", help="of dividing it: metis (default), stream or random"
    )
    parser.add_argument(
        "--also", default="", metavar="P,P,...",
        help="with --graph: other numbers of servers to rehearse, to learn how epochs grow",
    )  # fmt: skip
    parser.add_argument("--out", type=Path, metavar="FILE.png", help="also draw a picture")
    parser.add_argument("--json", action="store_true", help="print JSON only")
    parser.set_defaults(run=_run, takes_overrides=True)


def _run(options: argparse.Namespace) -> int:
    from hopper.config import load_config
    from hopper.train.rank import make_deterministic

    make_deterministic()
    config = load_config(options.config, options.overrides)
    console = Console(stderr=options.json)
    with tempfile.TemporaryDirectory(prefix="hopper-plan-") as folder:
        found = _plan(options, config, Path(folder), console)
    if options.out is not None:
        from hopper.bench.plan_picture import draw_plan

        draw_plan(found, options.out)
    if options.json:
        print(json.dumps(found.describe(), indent=1))
        return 0
    _print(found, console)
    if options.out is not None:
        console.print(f"picture in {options.out}", soft_wrap=True, highlight=False)
    return 0


def _plan(
    options: argparse.Namespace, config: Config, folder: Path, console: Console
) -> ClusterPlan:
    from hopper.bench.emulate.request import parse_rate
    from hopper.rehearsal.cluster_plan import AskedCluster, on_cluster, plan_cluster

    ranks = options.ranks_per_server
    if ranks is None:
        ranks = config.cluster.ranks_per_server
    bits = parse_rate(options.link_rate.lower())
    config = on_cluster(config, ranks)
    if options.graph is None:
        if options.also:
            raise RequestError("--also: expected --graph with the graph directory to divide")
        request, others = _open(config, Path(config.data.partitioned), folder), []
    else:
        if options.servers is None:
            raise RequestError("--graph: expected --servers with the number of parts")
        counts = [options.servers, *_numbers(options.also)]
        with console.status(f"dividing {options.graph}"):
            request, *others = _divide(options, config, counts, folder)
    servers = request.graph.book.servers if options.servers is None else options.servers
    cores = float(ranks) if options.cores is None else options.cores
    asked = AskedCluster(servers, ranks, bits, options.latency / 1e6, cores)
    engines = [each for each in options.engines.split(",") if each]
    with console.status("planning") as status:
        return plan_cluster(request, asked, engines, options.iterations, status.update, others)


def _numbers(text: str) -> list[int]:
    try:
        return [whole(each) for each in text.split(",") if each]
    except argparse.ArgumentTypeError as error:
        raise RequestError(f"--also: {error}") from error


def _open(config: Config, parts: Path, folder: Path) -> Request:
    """What is trained, on a divided graph."""
    from hopper.config import make_config
    from hopper.engines import Request
    from hopper.features import open_graph

    values = config.model_dump()
    values["train"]["run_dir"] = str(folder / "run")
    values["data"]["partitioned"] = str(parts)
    own = make_config(values)
    return Request(own, open_graph(own))


def _divide(
    options: argparse.Namespace, config: Config, counts: Sequence[int], folder: Path
) -> Iterator[Request]:
    """Divide a graph directory for a while, over each of some numbers of servers."""
    from hopper.graph.directory import GraphDirectory
    from hopper.partition import partition_graph

    graph = GraphDirectory.open(options.graph)
    for count in dict.fromkeys(counts):
        parts = folder / f"parts-{count}"
        partition_graph(graph, parts, count, options.method)
        yield _open(config, parts, folder)


def _print(found: ClusterPlan, console: Console) -> None:
    trained = [each for each in found.estimates if not each.refused]
    for table in (_times(trained), _bytes(trained), _stages(trained), _memory(trained)):
        print_table(console, table)
    if found.growth:
        print_table(console, _growth(found.growth))
    if not all(each.exact for each in trained):
        console.print("* approximate: its gradient is not that of one process", highlight=False)
    for each in found.estimates:
        if each.refused:
            console.print(f"{each.engine}: {each.refused}", soft_wrap=True, highlight=False)
    console.print("What is assumed:", highlight=False)
    for line in found.assumptions:
        console.print(f"- {line}", soft_wrap=True, highlight=False)


def _times(trained: Sequence[Estimate]) -> Table:
    from hopper.train.iteration_cost import PHASES

    table = _table("seconds", "epoch", "iterations", "each", *PHASES)
    for each in trained:
        phases = each.phase_seconds or {}
        table.add_row(
            *(_name(each), f"{each.epoch_seconds:.3g}", f"{each.iterations:,}"),
            *(f"{value:.3g}" for value in (each.iteration_seconds, *phases.values())),
        )
    return table


def _bytes(trained: Sequence[Estimate]) -> Table:
    from hopper.traffic import CAUSES

    causes = [cause for cause in CAUSES if any((e.bytes or {}).get(cause) for e in trained)]
    table = _table("MiB between servers, an epoch", "all", *causes)
    for each in trained:
        sent = each.bytes or {}
        values = (each.total_bytes, *(sent[cause] for cause in causes))
        table.add_row(_name(each), *(f"{value / _MIB:,.2f}" for value in values))
    return table


def _stages(trained: Sequence[Estimate]) -> Table:
    from hopper.run_log import STAGES

    table = _table("milliseconds of an iteration by stage, the mean of ranks", *STAGES)
    for each in trained:
        stages = each.iteration_stage_seconds or {}
        table.add_row(_name(each), *(f"{1e3 * stages[stage]:,.1f}" for stage in STAGES))
    return table


def _memory(trained: Sequence[Estimate]) -> Table:
    from hopper.rehearsal.memory import Memory

    names = [each.name for each in fields(Memory)]
    table = _table("MiB that a rank holds", "all", *names)
    for each in trained:
        if each.memory is not None:
            values = [each.memory.total, *(getattr(each.memory, name) for name in names)]
            table.add_row(_name(each), *(f"{value / _MIB:,.1f}" for value in values))
    return table


def _growth(growth: Sequence[Growth]) -> Table:
    title = "seconds of an epoch, by servers; * rehearsed"
    table = _table(title, *(each.engine for each in growth), first="servers")
    for number, of_first in enumerate(growth[0].points):
        points = [each.points[number] for each in growth]
        cells = (f"{p.epoch_seconds:.3g}{'*' * p.rehearsed}" for p in points)
        table.add_row(f"{of_first.servers:,}", *cells)
    return table


def _table(title: str, *columns: str, first: str = "engine") -> Table:
    table = Table(title=title)
    table.add_column(first, no_wrap=True)
    for column in columns:
        # On a narrow terminal headings are broken, numbers are not cut.
        table.add_column(column, justify="right", overflow="fold")
    return table


def _name(estimate: Estimate) -> str:
    return estimate.engine if estimate.exact else f"{estimate.engine} *"
