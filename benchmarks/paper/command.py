"""``python -m benchmarks.paper NAME [NAME...] --out DIR``: the papers' experiments as a command."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.paper.ab import measure_ab, measure_gpu, require_gpu
from benchmarks.paper.cells import Cell, make_cells
from benchmarks.paper.experiment import Experiment, MeasureName, load_experiments
from benchmarks.paper.job import Job, Measured, run_job
from benchmarks.paper.layers import (
    measure_layer_epochs,
    measure_layer_operators,
    measure_layer_rates,
)
from benchmarks.paper.materials import Materials
from benchmarks.paper.picture import PICTURE_FILE, draw
from benchmarks.paper.single import measure_job_times, measure_localities
from benchmarks.paper.turns import measure_penalties, measure_seeds
from benchmarks.summary import SUMMARY_FILE, Row
from cache_server.errors import CacheServerError
from hopper.cli.options import whole
from hopper.display.console_tables import print_table
from hopper.errors import HopperError, RequestError
from hopper.process.override_words import split_overrides
from hopper.process.signal_handlers import EndedBySignal, end_on_signals

MEASURES: Final[Mapping[MeasureName, Callable[[Job, Cell], Measured]]] = {
    "ab": measure_ab,
    "gpu": measure_gpu,
    "locality": measure_localities,
    "seeds": measure_seeds,
    "penalties": measure_penalties,
    "job-times": measure_job_times,
    "layer-epochs": measure_layer_epochs,
    "layer-operators": measure_layer_operators,
    "layer-rates": measure_layer_rates,
}
_WORK: Final = Path("runs/paper")


def build_parser() -> argparse.ArgumentParser:
    """Return the command's options; overrides of the configuration are taken out of its words
    before."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.paper",
        description="Run experiments of papers, or Hopper's own. Cells that have a result in DIR "
        "are not run again, so what was interrupted goes on. Any key of the configuration can be "
        "overridden as --section.key VALUE.",
        epilog="The grid's options replace the experiment's own values.",
        allow_abbrev=False,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="such as hopgnn-fig11")
    parser.add_argument("--list", action="store_true", help="list all experiments")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write")
    parser.add_argument(
        "--work", type=Path, default=_WORK, metavar="DIR",
        help=f"where graphs, partitions and runs are kept (default {_WORK})",
    )  # fmt: skip
    grid = parser.add_argument_group("grid, values between commas")
    for axis, text in {
        "graphs": "presets or graph directories",
        "models": "such as gcn, sage, gat, deepgcn, film, rgcn",
        "hidden": "widths of hidden rows",
        "link-rate": "of emulated hosts in each direction: 100mbit, 1gbit, ... or none",
    }.items():
        grid.add_argument(f"--{axis}", type=_words, metavar="A,B,...", help=text)
    grid.add_argument("--scale", type=float, metavar="F", help="of every preset")
    grid.add_argument(
        "--batch-size", type=whole, metavar="B", help="roots a rank and iteration, not scaled"
    )
    runs = parser.add_argument_group("runs")
    runs.add_argument(
        "--sides",
        nargs="+",
        action="extend",
        metavar="NAME",
        help="some of those that are compared",
    )
    runs.add_argument("--rounds", type=whole, metavar="R", help="of comparisons, or seeds")
    runs.add_argument("--epochs", type=whole, metavar="E", help="of every run")
    runs.add_argument("--iterations", type=whole, metavar="N", help="of an epoch, at most")
    runs.add_argument("--host-cpus", type=float, metavar="F", help="CPUs an emulated host may use")
    runs.add_argument("--host-memory", metavar="SIZE", help="memory a host may use, such as 2G")
    places = runs.add_mutually_exclusive_group()
    places.add_argument(
        "--emulate", type=whole, metavar="P",
        help="servers, each an emulated host (the default, with 4; root is needed, and loopback is "
        "used where hosts cannot be had)",
    )  # fmt: skip
    places.add_argument(
        "--loopback", type=whole, nargs="?", const=0, metavar="P",
        help="servers on this machine's loopback instead",
    )  # fmt: skip
    return parser


def change(experiment: Experiment, options: argparse.Namespace) -> Experiment:
    """Return an experiment with what the command line asks for.

    Raises
    ------
    RequestError: names the option, what was expected and what came.
    """
    if options.sides:
        experiment = experiment.of_sides(tuple(options.sides))
    on_loopback, grid = options.loopback is not None, experiment.grid
    for name in ("link_rate", "host_cpus", "host_memory"):
        if on_loopback and getattr(options, name) is not None:
            raise RequestError(f"--{name.replace('_', '-')}: there are no hosts with --loopback")
    for name in ("rounds", "epochs", "iterations", "batch_size"):
        if getattr(options, name) is not None and getattr(options, name) < 1:
            given = getattr(options, name)
            raise RequestError(f"--{name.replace('_', '-')}: expected at least 1, given {given}")
    if options.scale is not None and not 0 < options.scale <= 1:
        raise RequestError(f"--scale: expected more than 0 and at most 1, given {options.scale:g}")
    servers = options.loopback if on_loopback else options.emulate
    if servers and len(grid.servers) > 1 and servers not in grid.servers:
        raise RequestError(
            f"--emulate or --loopback: {experiment.name} varies the number of servers itself; "
            f"expected one of {', '.join(map(str, grid.servers))}, or none; given {servers}"
        )
    axes = {
        "graphs": options.graphs,
        "models": options.models if grid.models else None,
        "hidden": options.hidden and tuple(map(_positive, options.hidden)),
        "links": options.link_rate,
        "names_link": tuple(options.link_rate or grid.links) != grid.links,
        "servers": (servers,) if servers else None,
        "pairs": () if options.graphs or options.models else None,
    }
    runs = {key: getattr(options, key) for key in ("rounds", "epochs", "iterations")}
    runs |= {key: getattr(options, key) for key in ("host_cpus", "host_memory")}
    new_grid = grid.model_copy(update={k: v for k, v in axes.items() if v is not None})
    changes = {key: value for key, value in runs.items() if value is not None}
    return experiment.model_copy(update={**changes, "grid": new_grid})


def make_job(
    experiment: Experiment,
    options: argparse.Namespace,
    words: Sequence[str],
    say: Callable[[str], None],
    begin: Callable[[str], None],
) -> Job:
    """Check what is asked for before anything is made.

    Raises
    ------
    RequestError, ConfigError: names the option or key, what was expected and what came.
    """
    experiment = change(experiment, options)
    cells = make_cells(experiment.grid, options.scale, options.batch_size)
    if experiment.measure == "gpu":
        require_gpu(experiment.name)
    job = Job(
        experiment, cells, tuple(words), options.loopback is None, options.out,
        Materials(options.work, say), say, begin,
    )  # fmt: skip
    job.check()
    for cell in cells if options.sides else ():
        for side, why in job.why_not(cell).items():
            if why is not None:
                raise RequestError(f"--sides: {side}: {cell.name}: {why}")
    return job


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns 0, or 1 where sides of a cell did not compute the same or the
    command could not be carried out."""
    words, overrides = split_overrides(sys.argv[1:] if arguments is None else arguments)
    try:
        with end_on_signals():
            return run(words, overrides)
    except (HopperError, CacheServerError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except EndedBySignal as error:
        print(error, file=sys.stderr)
        return error.code


def run(words: Sequence[str], overrides: Sequence[str]) -> int:
    """Carry out the command.

    Parameters
    ----------
    overrides: words of ``--section.key value``.

    Raises
    ------
    HopperError: what was asked for cannot be done. Cells before it are kept.
    """
    options = build_parser().parse_args(_complete_loopback(words))
    console, experiments = Console(), load_experiments()
    if options.list:
        table = Table("experiment", "in the paper", "", "cells", box=None, pad_edge=False)
        for experiment in experiments.values():
            count = str(len(make_cells(experiment.grid)))
            place = " ".join(filter(None, (experiment.paper, experiment.where)))
            table.add_row(experiment.name, place, experiment.title, count)
        print_table(console, table)
        return 0
    unknown = [name for name in options.names if name not in experiments]
    if unknown or not options.names:
        given = repr(unknown[0]) if unknown else "none"
        raise RequestError(
            f"experiment: expected some of {', '.join(experiments)}; given {given} "
            "(--list describes them)"
        )
    if options.out is None:
        raise RequestError("--out DIR: name the folder to write to")
    if options.out.is_file():
        raise RequestError(f"--out: {options.out} is a file; name a folder")
    with _progress(console) as (say, begin, advance):
        jobs = [make_job(experiments[n], options, overrides, say, begin) for n in options.names]
        advance(sum(len(job.cells) for job in jobs))
        for job in jobs:
            job.prepare()
        problems = False
        for job in jobs:
            rows: list[Row] = []
            try:
                for entry in run_job(job, MEASURES[job.experiment.measure]):
                    advance(0)
                    rows += entry["rows"]
                    problems |= bool(entry["problems"])
                    for problem in entry["problems"]:
                        say(f"{entry['cell']['name']}: no ratio is told: {problem}")
            finally:
                if rows:
                    draw(
                        job.experiment, rows, options.out / PICTURE_FILE.format(rows[0].experiment)
                    )
            _print_rows(console, job.experiment, rows)
    console.print(f"all of it: {options.out / SUMMARY_FILE}", soft_wrap=True, highlight=False)
    return 1 if problems else 0


def _print_rows(console: Console, experiment: Experiment, rows: Sequence[Row]) -> None:
    """Print what the paper reports, and what was measured."""
    console.print(f"\n{experiment.name}: {experiment.title}", highlight=False)
    for place, what, value in experiment.published:
        console.print(f"  {experiment.paper}, {place}: {what}: {value}", highlight=False)
    headings = ("cell", "side", "measure", "median", "baseline", "ratio (95 % interval)", "rounds")
    table = Table(*headings, box=None, pad_edge=False)
    for row in rows:
        interval = "" if row.low is None else f" ({row.low:.2f} to {row.high:.2f})"
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}{interval}"
        rounds = "" if row.rounds is None else str(row.rounds)
        table.add_row(
            row.cell, row.side, row.measure, f"{row.median:.4g}", row.baseline, ratio, rounds
        )
    print_table(console, table)


@contextmanager
def _progress(console: Console) -> Iterator[tuple[Any, Any, Callable[[int], None]]]:
    """Show a bar over cells while the context lasts.

    Yields
    ------
    Functions: one prints a line above the bar, one names the run that begins, and one sets the
    number of cells, or with 0 tells that one of them is finished.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=console, transient=True,
        disable=not console.is_terminal,
    ) as progress:  # fmt: skip
        task = progress.add_task("", total=None)

        def say(text: str) -> None:
            console.print(text, soft_wrap=True, highlight=False)

        def begin(name: str) -> None:
            progress.update(task, description=name)

        def advance(cells: int) -> None:
            progress.update(task, total=cells) if cells else progress.advance(task)

        yield say, begin, advance


def _complete_loopback(words: Sequence[str]) -> list[str]:
    """Write ``--loopback`` as ``--loopback=0``, the default number, if no number follows; otherwise
    argparse would take a name that follows for the option's value."""
    return [
        f"{word}=0" if word == "--loopback" and not following.isdecimal() else word
        for word, following in zip(words, [*words[1:], ""], strict=True)
    ]


def _words(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise RequestError(f"--hidden: expected positive numbers between commas, given {text!r}")
    return int(text)
