"""``hopper bench paper hopgnn-fig11 --out DIR [...]``: a paper's experiment as a command.

:mod:`hopper.cli.bench_paper` finds this module in a checkout and calls :func:`run`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.paper.grid import Progress
from benchmarks.paper.job import make_job, run_job
from benchmarks.paper.options import Options
from benchmarks.paper.page import PAGE_FILE
from benchmarks.paper.registry import EXPERIMENTS
from benchmarks.peers.registry import PEERS
from hopper.cli.bench import progress_bar
from hopper.cli.numbers import whole
from hopper.console_tables import print_table
from hopper.errors import RequestError
from hopper.signal_handlers import end_on_signals

_WORK = Path("runs/paper")


def build_parser() -> argparse.ArgumentParser:
    """Return the command's options; overrides of the configuration are taken out of its words
    before."""
    parser = argparse.ArgumentParser(
        prog="hopper bench paper",
        description="Run an experiment of a paper, or one of Hopper's own, as an A/B in every cell "
        "of its grid. Cells that have a result in DIR are not run again, so what was interrupted "
        "can be continued. Any key of the configuration can be overridden as --section.key VALUE.",
        allow_abbrev=False,
    )
    parser.add_argument("experiment", nargs="?", metavar="NAME", help="such as hopgnn-fig11")
    parser.add_argument("--list", action="store_true", help="list all experiments")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write")
    parser.add_argument(
        "--work", type=Path, default=_WORK, metavar="DIR",
        help=f"where graphs, partitions and runs are kept (default {_WORK})",
    )  # fmt: skip
    _add_grid(parser)
    _add_cluster(parser)
    return parser


def _add_grid(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what is run", "defaults are the experiment's own")
    group.add_argument("--scale", type=float, metavar="F", help="of every preset")
    group.add_argument("--graphs", metavar="A,B,...", help="presets or graph directories")
    group.add_argument("--models", metavar="A,B,...", help="gcn, sage, gat, deepgcn, film")
    group.add_argument("--hidden", metavar="H,H,...", help="hidden widths")
    group.add_argument(
        "--batch-size", type=whole, metavar="B",
        help="roots a rank and iteration (default: 1024 times the scale, at least 16)",
    )  # fmt: skip
    group.add_argument("--rounds", type=whole, metavar="R", help="of every comparison")
    group.add_argument("--epochs", type=whole, metavar="E", help="of every run")
    group.add_argument(
        "--iterations", type=whole, metavar="N", help="of an epoch, at most (experiment's default)"
    )
    group.add_argument(
        "--side",
        action="append",
        dest="sides",
        metavar="NAME",
        help="one of those that are compared, as tables call them; may be given several times",
    )
    group.add_argument(
        "--peers", metavar="A,B,...",
        help=f"other systems to compare with: some of {', '.join(PEERS)}, or none",
    )  # fmt: skip
    group.add_argument(
        "--seeds", type=whole, default=5, metavar="K", help="where accuracy is measured (default 5)"
    )


def _add_cluster(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("where it is run")
    places = group.add_mutually_exclusive_group()
    places.add_argument(
        "--emulate", type=whole, metavar="P",
        help="servers, each an emulated host (the default, with 4; root is needed, and loopback is "
        "used where hosts cannot be had)",
    )  # fmt: skip
    places.add_argument(
        "--loopback", type=whole, nargs="?", const=0, metavar="P",
        help="servers on this machine's loopback instead (default 4)",
    )  # fmt: skip
    group.add_argument(
        "--link-rate", metavar="RATE",
        help="of every host's link in each direction: 100mbit, 1gbit, ... or none (default 1gbit)",
    )  # fmt: skip
    group.add_argument("--host-cpus", type=float, metavar="F", help="CPUs a host may use")
    group.add_argument("--host-memory", metavar="SIZE", help="memory a host may use, such as 2G")


def make_options(arguments: argparse.Namespace, overrides: Sequence[str]) -> Options:
    """Return what the command line asks for.

    Parameters
    ----------
    overrides: words of ``--section.key value``.

    Raises
    ------
    RequestError: a word that is no number, no folder, options that exclude each other.
    """
    if arguments.out is None:
        raise RequestError("--out DIR: name the folder to write to")
    on_loopback = arguments.loopback is not None
    for name in ("link_rate", "host_cpus", "host_memory"):
        if on_loopback and getattr(arguments, name) is not None:
            raise RequestError(f"--{name.replace('_', '-')}: there are no hosts with --loopback")
    return Options(
        out=arguments.out,
        work=arguments.work,
        scale=arguments.scale,
        graphs=_words(arguments.graphs),
        models=_words(arguments.models),
        hidden=_numbers(arguments.hidden),
        rounds=arguments.rounds,
        epochs=arguments.epochs,
        iterations=arguments.iterations,
        batch_size=arguments.batch_size,
        seeds=arguments.seeds,
        sides=None if arguments.sides is None else tuple(arguments.sides),
        peers=() if arguments.peers == "none" else _words(arguments.peers),
        servers=(arguments.loopback or None) if on_loopback else arguments.emulate,
        emulated=not on_loopback,
        link_rate=arguments.link_rate,
        host_cpus=arguments.host_cpus,
        host_memory=arguments.host_memory,
        words=tuple(overrides),
    )


def run(words: Sequence[str], overrides: Sequence[str]) -> int:
    """Carry out the command.

    Parameters
    ----------
    words: what follows ``hopper bench paper``, without the overrides.
    overrides: words of ``--section.key value``.

    Returns
    -------
    0, or 1 where sides of a cell did not compute the same.

    Raises
    ------
    HopperError: what was asked for cannot be done.
    """
    arguments = build_parser().parse_args(_complete_loopback(words))
    console = Console()
    if arguments.list:
        _print_list(console)
        return 0
    if arguments.experiment not in EXPERIMENTS:
        raise RequestError(
            f"experiment: expected one of {', '.join(EXPERIMENTS)}; given {arguments.experiment!r}"
        )
    experiment, options = EXPERIMENTS[arguments.experiment], make_options(arguments, overrides)
    total = make_job(experiment, options, Progress(lambda _: None, lambda _: None)).total_runs
    with progress_bar(console, total) as bar, end_on_signals():
        result = run_job(make_job(experiment, options, Progress(bar.say, bar.begin)))
    console.print(f"page: {options.out / PAGE_FILE}", soft_wrap=True, highlight=False)
    return 1 if any(cell["problems"] for cell in result["cells"]) else 0


def _complete_loopback(words: Sequence[str]) -> list[str]:
    """Write ``--loopback`` as ``--loopback=0``, the default number, if no number follows.

    Otherwise argparse would take a name that follows for the option's value.
    """
    return [
        f"{word}=0" if word == "--loopback" and not following.isdecimal() else word
        for word, following in zip(words, [*words[1:], ""], strict=True)
    ]


def _print_list(console: Console) -> None:
    table = Table("experiment", "", "cells", box=None, pad_edge=False)
    for experiment in EXPERIMENTS.values():
        table.add_row(experiment.name, experiment.title, _count(experiment))
    print_table(console, table)


def _count(experiment: Any) -> str:
    return str(len(experiment.grid.cells(Options(Path(), Path()))))


def _words(text: str | None) -> tuple[str, ...] | None:
    return None if text is None else tuple(word.strip() for word in text.split(","))


def _numbers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    try:
        numbers = tuple(int(word) for word in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or min(numbers) < 1:
        raise RequestError(f"--hidden: expected positive numbers between commas, given {text!r}")
    return numbers
