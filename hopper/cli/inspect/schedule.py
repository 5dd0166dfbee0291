"""``hopper inspect schedule CONFIG.toml``: the time steps of an iteration of hop."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from rich.console import Console

from hopper.cli.options import print_json, whole
from hopper.display.console_tables import make_table, print_table
from hopper.errors import RequestError

if TYPE_CHECKING:
    from hopper.micrograph.merge import TimeSteps


def add_parser(kinds: Any) -> None:
    """Add the subcommand."""
    parser = kinds.add_parser(
        "schedule",
        help="show the time steps of an iteration of the hop engine",
        description="Show the time steps without training. Every rank derives them from the "
        "configuration alone. Any key of it can be overridden as --section.key VALUE.",
        allow_abbrev=False,
    )
    parser.option("--epoch E", "default 0", type=whole, default=0)
    parser.option("--iteration I", "default 0", type=whole, default=0)
    parser.option("--dissolve K", "steps to dissolve (hop.merge)", type=whole)
    parser.option("--json", "print JSON instead of a table")
    parser.run_on_config(_run)


def _run(options: argparse.Namespace) -> int:
    from hopper.config import load_config
    from hopper.engines import Request
    from hopper.engines.assemble import make_schedule
    from hopper.engines.trial_configs import is_trials
    from hopper.features import open_graph
    from hopper.micrograph.merge import make_time_steps

    config = load_config(options.config, options.overrides)
    if is_trials(config):
        raise RequestError(
            'hop.replicas: the steps shown are those of "synchronous"; with "independent" every '
            "model trains all roots on all ranks in turn"
        )
    graph = open_graph(config)
    ranks = graph.book.servers * config.cluster.ranks_per_server
    batches = make_schedule(Request(config, graph))
    if not 0 <= options.iteration < batches.iterations:
        raise RequestError(
            f"--iteration: expected 0 to {batches.iterations - 1}, given {options.iteration}"
        )
    dissolve = options.dissolve
    if dissolve is None:
        dissolve = config.hop.merge if isinstance(config.hop.merge, int) else 0
    if not 0 <= dissolve < ranks:
        raise RequestError(
            f"--dissolve: expected 0 to {ranks - 1} of the {ranks} steps, given {dissolve}"
        )
    batch = batches.batch(options.epoch, options.iteration)
    selection = config.hop.merge_selection
    steps = make_time_steps(batch, ranks, dissolve, selection, config.train.seed)
    if options.json:
        print_json(
            {
                "epoch": options.epoch,
                "iteration": options.iteration,
                "roots": batch.size,
                "time_steps": steps.count,
                "ranks": [
                    [[{"model": model, "roots": roots} for model, roots in step] for step in row]
                    for row in list_schedule(steps)
                ],
            }
        )
        return 0
    title = (
        f"epoch {options.epoch}, iteration {options.iteration}: {batch.size} roots, "
        f"{steps.count} of {ranks} time steps"
    )
    headings = ("rank", *(f"time step {step}" for step in range(steps.count)))
    rows = [
        (str(rank), *(cell or "waits" for cell in row))
        for rank, row in enumerate(format_schedule(steps))
    ]
    console = Console()
    print_table(console, make_table(headings, rows, title, texts=len(headings)))
    console.print("m2 (37): model 2 on 37 roots", highlight=False)
    return 0


def format_schedule(steps: TimeSteps) -> list[list[str]]:
    """Return, as [ranks][steps], the models that train: ``m2 (37)`` for 37 roots of model 2."""
    return [
        [", ".join(f"m{model} ({roots})" for model, roots in step) for step in row]
        for row in list_schedule(steps)
    ]


def list_schedule(steps: TimeSteps) -> list[list[list[tuple[int, int]]]]:
    """Return, as [ranks][steps], the models that train, each with its number of roots."""
    from hopper.migrate.schedule import visits

    return [
        [
            [(model, steps.groups[model][visit.step].size) for model in visit.models]
            for visit in visits(steps.ranks, rank)
        ]
        for rank in range(steps.ranks.shape[0])
    ]
