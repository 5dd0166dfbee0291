"""``hopper plan CONFIG.toml``: estimate each engine's bytes and seconds on any cluster."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from hopper.cli.options import CommandParser, print_json, whole
from hopper.display.console_tables import make_table, print_table
from hopper.errors import RequestError
from hopper.files.scratch import scratch_folder

if TYPE_CHECKING:
    from hopper.config import Config
    from hopper.rehearsal.cluster_plan import ClusterPlan
    from hopper.rehearsal.estimate import Estimate

_MIB = 2**20


def add_options(parser: CommandParser) -> None:
    """Add the options of the command."""
    parser.description = (
        "No cluster is needed. All its ranks are threads of this process and run a few "
        "iterations of each engine. Any key of the configuration can be overridden as "
        "--section.key VALUE."
    )
    parser.allow_abbrev = False
    parser.option("--servers P", "servers (default: as many as partitions)", type=whole)
    parser.option("--ranks-per-server R", "default: cluster.ranks_per_server", type=whole)
    parser.option(
        "--link-rate RATE",
        "rate of each server's link in each direction, or none for no limit (default 10gbit)",
        default="10gbit",
    )
    parser.option(
        "--latency MICROSECONDS",
        "latency between two servers (default 50)",
        type=float,
        default=50.0,
    )
    parser.option("--cores C", "CPU cores of each server (default: one per rank)", type=float)
    parser.option("--engines A,B,...", "default: all that can train the graph", default="")
    parser.option("--iterations K", "rehearsed iterations (default 3)", type=whole, default=3)
    parser.option(
        "--graph DIR",
        "first divide this graph directory over the servers, and use it in place of "
        "data.partitioned",
        type=Path,
    )
    parser.option(
        "--method", "how to divide --graph: metis (default), stream or random", default="metis"
    )
    parser.option("--json", "print JSON only")
    parser.run_on_config(_run)


def _run(options: argparse.Namespace) -> int:
    from hopper.config import load_config
    from hopper.train.rank import make_deterministic

    make_deterministic()
    config = load_config(options.config, options.overrides)
    console = Console(stderr=options.json)
    with scratch_folder("hopper-plan-") as folder:
        cluster_plan = _plan(options, config, folder, console)
    if options.json:
        print_json(cluster_plan.describe())
        return 0
    _print(cluster_plan, console)
    return 0


def _plan(
    options: argparse.Namespace, config: Config, folder: Path, console: Console
) -> ClusterPlan:
    from hopper.bench.emulate.request import parse_rate
    from hopper.config import change_config
    from hopper.engines import Request
    from hopper.features import open_graph
    from hopper.graph.directory import GraphDirectory
    from hopper.partition import partition_graph
    from hopper.rehearsal.cluster_plan import AskedCluster, on_cluster, plan_cluster

    ranks = options.ranks_per_server
    if ranks is None:
        ranks = config.cluster.ranks_per_server
    bits = parse_rate(options.link_rate.lower())
    config = on_cluster(config, ranks)
    if options.graph is not None:
        if options.servers is None:
            raise RequestError("--graph: expected --servers with the number of parts")
        parts = folder / "parts"
        with console.status(f"dividing {options.graph}"):
            graph = GraphDirectory.open(options.graph)
            partition_graph(graph, parts, options.servers, options.method)
        config = change_config(config, data={"partitioned": str(parts)})
    config = change_config(config, train={"run_dir": str(folder / "run")})
    request = Request(config, open_graph(config))
    servers = request.graph.book.servers if options.servers is None else options.servers
    cores = float(ranks) if options.cores is None else options.cores
    cluster = AskedCluster(servers, ranks, bits, options.latency / 1e6, cores)
    engines = [engine for engine in options.engines.split(",") if engine]
    with console.status("planning") as status:
        return plan_cluster(request, cluster, engines, options.iterations, status.update)


def _print(plan: ClusterPlan, console: Console) -> None:
    trained = [estimate for estimate in plan.estimates if not estimate.refused]
    for table in (_times(trained), _bytes(trained), _memory(trained)):
        print_table(console, table)
    if not all(estimate.exact for estimate in trained):
        console.print("* approximate: its gradient is not that of one process", highlight=False)
    for estimate in plan.estimates:
        if estimate.refused:
            console.print(f"{estimate.engine}: {estimate.refused}", soft_wrap=True, highlight=False)
    console.print("What is assumed:", highlight=False)
    for line in plan.assumptions:
        console.print(f"- {line}", soft_wrap=True, highlight=False)


def _times(trained: Sequence[Estimate]) -> Table:
    from hopper.rehearsal.estimate import PHASES

    rows = []
    for estimate in trained:
        seconds = (estimate.iteration_seconds, *(estimate.phase_seconds or {}).values())
        epoch = (f"{estimate.epoch_seconds:.3g}", f"{estimate.iterations:,}")
        rows.append((_name(estimate), *epoch, *(f"{value:.3g}" for value in seconds)))
    return make_table(("engine", "epoch", "iterations", "each", *PHASES), rows, "seconds")


def _bytes(trained: Sequence[Estimate]) -> Table:
    from hopper.cluster.traffic import CAUSES

    causes = [cause for cause in CAUSES if any((e.bytes or {}).get(cause) for e in trained)]
    rows = []
    for estimate in trained:
        nbytes = estimate.bytes or {}
        values = (estimate.total_bytes, *(nbytes[cause] for cause in causes))
        rows.append((_name(estimate), *(f"{value / _MIB:,.2f}" for value in values)))
    return make_table(("engine", "all", *causes), rows, "MiB between servers, an epoch")


def _memory(trained: Sequence[Estimate]) -> Table:
    from hopper.rehearsal.estimate import Memory

    names, rows = [field.name for field in fields(Memory)], []
    for estimate in trained:
        if estimate.memory is not None:
            values = (getattr(estimate.memory, name) for name in ("total", *names))
            rows.append((_name(estimate), *(f"{value / _MIB:,.1f}" for value in values)))
    return make_table(("engine", "all", *names), rows, "MiB that a rank holds")


def _name(estimate: Estimate) -> str:
    return estimate.engine if estimate.exact else f"{estimate.engine} *"
