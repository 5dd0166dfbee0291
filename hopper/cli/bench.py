"""``hopper bench CONFIG.toml --engines A,B,... --out DIR [--section.key VALUE ...]``."""

from __future__ import annotations

import argparse
from functools import partial
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from hopper.cli.options import CommandParser, whole
from hopper.errors import RequestError
from hopper.process.thread_settings import count_cores

if TYPE_CHECKING:
    from hopper.bench.emulate.request import Request
    from hopper.config import Config


def add_options(parser: CommandParser) -> None:
    """Add the options of the command."""
    parser.description = (
        "Compare gradients and losses of engines, then time them in rounds. Any key "
        "of the configuration can be overridden as --section.key VALUE."
    )
    parser.allow_abbrev = False
    parser.option(
        "--engines A,B,...",
        "engines to compare, each ENGINE[:KEY=VALUE]... (hop:merge=off:pregather=false)",
        required=True,
    )
    parser.option("--out DIR", "where to write", required=True, type=Path)
    parser.option("--rounds R", "default 3", type=whole, default=3)
    parser.option(
        "--run-timeout SECONDS",
        "deadline of each run (default: the sum of the deadlines in the configuration)",
        type=float,
    )
    group = parser.add_argument_group(
        "emulated cluster", "hosts are network namespaces on this machine; this needs root"
    )
    emulated = partial(parser.option, group=group)
    emulated("--emulate P", "number of hosts, one for each partition", type=whole)
    emulated(
        "--link-rate RATE",
        "rate of each host's link in each direction, such as 100mbit, or none (default 1gbit)",
    )
    emulated("--host-cpus F", "CPUs that a host may use (default: no bound)", type=float)
    emulated("--host-memory SIZE", "memory that a host may use, such as 2G (default: no bound)")
    parser.run_on_config(_run)


def _run(options: argparse.Namespace) -> int:
    from hopper.config import read_config
    from hopper.launch.processes import forked_ahead

    config = read_config(options.config, options.overrides)
    runs = options.rounds * len(options.engines.split(","))
    with forked_ahead(config, launchers=runs):
        return _compare(config, options)


def _compare(config: Config, options: argparse.Namespace) -> int:
    import torch

    from hopper.bench.ab import run_ab
    from hopper.bench.ab_plan import make_plan
    from hopper.bench.emulate.reconcile import print_reconciliation
    from hopper.bench.picture import PICTURE_FILE, draw
    from hopper.bench.placement import place_plan
    from hopper.bench.results import write_results
    from hopper.bench.table import print_results
    from hopper.partition import PartitionedGraph

    # Imported for ranks, torch has as many threads as one of them.
    torch.set_num_threads(count_cores())
    engines = [name.strip() for name in options.engines.split(",")]
    request = _emulation_request(options)
    if request is not None:
        request.check(config, PartitionedGraph.open(config.data.partitioned).book.servers)
    plan = make_plan(config, engines, options.out, options.rounds, options.run_timeout)
    console, begun = Console(), count()
    # A bar over all runs on a terminal, and a line per run elsewhere.
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    task = bar.add_task("", total=plan.total_runs)
    say = partial(console.print, soft_wrap=True, highlight=False)

    def begin(name: str) -> None:
        bar.update(task, completed=next(begun), description=name)

    with bar, place_plan(plan, request, say) as (plan, emulation):
        outcome = run_ab(plan, say, begin)
    outcome.results["machine"]["emulation"] = emulation
    write_results(plan.out, outcome.results)
    draw(outcome.results, plan.out / PICTURE_FILE)
    print_reconciliation(console, outcome.results["runs"])
    print_results(console, outcome.results, outcome.problems)
    console.print(f"results, picture and runs in {plan.out}", soft_wrap=True, highlight=False)
    return 1 if outcome.problems else 0


def _emulation_request(options: argparse.Namespace) -> Request | None:
    """Return the cluster that ``--emulate`` and its options ask for. None without ``--emulate``."""
    from hopper.bench.emulate.request import make_request

    values = options.link_rate, options.host_cpus, options.host_memory
    if options.emulate is not None:
        return make_request(options.emulate, *values)
    for name, value in zip(("link-rate", "host-cpus", "host-memory"), values, strict=True):
        if value is not None:
            raise RequestError(f"--{name}: belongs to an emulated cluster; give --emulate P too")
    return None
