"""``hopper bench faults --out DIR``: what runs, feature servers and files stand.

:mod:`hopper.cli.bench_paper` finds this module in a checkout and calls :func:`run`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.faults.altered_files import alter_files
from benchmarks.faults.bad_requests import send_bad_requests
from benchmarks.faults.cases import CASES
from benchmarks.faults.load import load_server
from benchmarks.faults.matrix import (
    WRONG,
    Trial,
    draw_trials,
    measure,
    try_all,
    usable_cases,
)
from benchmarks.faults.page import write_all
from benchmarks.faults.running import Limits, World, make_world, running
from benchmarks.faults.summary import summarise
from hopper.bench.machine import commit, machine, versions
from hopper.cli import main as hopper
from hopper.cli.numbers import seed, whole
from hopper.errors import RequestError
from hopper.scratch import scratch_folder
from hopper.signal_handlers import end_on_signals

_SCALE = "0.005"
_PAGE_EVERY = 10
"""trials, after which the page is written again"""


def build_parser() -> argparse.ArgumentParser:
    """Return the command's options."""
    parser = argparse.ArgumentParser(
        prog="hopper bench faults",
        description="Let things happen to small runs over two servers, at random moments. Each "
        "case says beforehand whether a run has to recover, with the losses of a run that nothing "
        "happens to, or to end within its deadline in a line that names what failed. Some cases "
        "mount a file system or bound memory, and are tried as root only. Ends with 1 if anything "
        "else came out.",
        allow_abbrev=False,
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write")
    parser.add_argument("--list", action="store_true", help="list the cases")
    parser.add_argument("--runs", type=whole, default=500, metavar="N", help="default 500")
    parser.add_argument("--cases", metavar="A,B", help="some of them, as --list names them")
    parser.add_argument("--seed", type=seed, default=0, metavar="K", help="default 0")
    parser.add_argument("--at-once", type=whole, default=2, metavar="N", help="runs side by side")
    parser.add_argument(
        "--busy", action="store_true", help="let the page say that other work runs beside it"
    )
    parser.add_argument("--epochs", type=whole, default=6, metavar="N", help="of a run; default 6")
    parser.add_argument(
        "--grace", type=float, default=Limits.grace, metavar="SECONDS",
        help=f"that a run may take beyond a deadline; default {Limits.grace:g}",
    )  # fmt: skip
    parser.add_argument(
        "--fuzz", type=whole, default=0, metavar="REQUESTS",
        help="to a feature server that make no sense, beside a client whose requests do",
    )  # fmt: skip
    parser.add_argument(
        "--files", type=whole, default=0, metavar="N", help="altered on disk, one at a time"
    )
    parser.add_argument(
        "--load", type=float, default=0.0, metavar="SECONDS",
        help="of 32 clients of one server, then of 128, without TLS and with it",
    )  # fmt: skip
    return parser


def run(words: Sequence[str], overrides: Sequence[str]) -> int:
    """Run the command. Return 1 if something was wrong, else 0.

    Raises
    ------
    RequestError: names the option, what was expected and what came.
    """
    options = build_parser().parse_args(words)
    if options.list:
        for case in CASES.values():
            print(f"{case.word}: {case.right}")
        return 0
    cases = _check(options, overrides)
    # A shell starts background jobs with Ctrl-C ignored, and every run would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    options.out.mkdir(parents=True, exist_ok=True)
    result: dict[str, Any] = {
        "schema": 1, "date": datetime.now(UTC).strftime("%Y-%m-%d"), "commit": commit(),
        "machine": machine(), "versions": versions(), "seed": options.seed,
        "at_once": options.at_once, "busy": options.busy,
        "command": _repeat(options),
    }  # fmt: skip
    console = Console()
    limits = Limits(grace=options.grace)
    with end_on_signals(), scratch_folder("hopper-faults-") as folder, _bars(console) as bars:
        parts, others = divide(folder)
        try:
            _try_parts(options, cases, limits, (folder, parts, others), bars, result)
        finally:
            write_all(options.out, result)
    wrong = [line for part in ("matrix", "files", "fuzz", "load")
             for line in result.get(part, {}).get("wrong", [])]  # fmt: skip
    for line in wrong:
        console.print(line, style="red", markup=False, soft_wrap=True)
    console.print(f"{len(wrong)} wrong; {options.out}/README.md", markup=False, soft_wrap=True)
    return 1 if wrong else 0


def _check(options: argparse.Namespace, overrides: Sequence[str]) -> list[str]:
    """Return the cases to try."""
    if overrides:
        raise RequestError(f"bench faults: {overrides[0]}: runs have a configuration of their own")
    if options.out is None:
        raise RequestError("bench faults: --out: name a folder")
    for name, least in (("runs", 0), ("at_once", 1), ("epochs", 1), ("fuzz", 0), ("files", 0)):
        value = getattr(options, name)
        if value < least:
            option = name.replace("_", "-")
            raise RequestError(f"--{option}: expected {least} or more, given {value}")
    for name in ("grace", "load"):
        if not 0 <= getattr(options, name) < float("inf"):
            raise RequestError(f"--{name}: expected seconds, given {getattr(options, name)}")
    usable = usable_cases()
    if not options.cases:
        return usable
    words = {case.word: name for name, case in CASES.items()}
    case_names = [word.strip() for word in options.cases.split(",")]
    for word in case_names:
        if words.get(word) not in usable:
            why = "needs root" if word in words else "is none; --list tells them"
            raise RequestError(f"--cases: {word!r} {why}")
    return [words[word] for word in case_names]


def _repeat(options: argparse.Namespace) -> str:
    """Return the command line that repeats the result, without its folder."""
    defaults = build_parser().parse_args([])
    words = ["hopper bench faults"]
    for name, value in vars(options).items():
        if name not in ("out", "busy") and (value != getattr(defaults, name) or name == "seed"):
            words.append(f"--{name.replace('_', '-')} {value:g}" if isinstance(value, float)
                         else f"--{name.replace('_', '-')} {value}")  # fmt: skip
    return " ".join(words)


def _try_parts(
    options: argparse.Namespace,
    cases: list[str],
    limits: Limits,
    folders: tuple[Path, Path, Path],
    bars: Progress,
    result: dict[str, Any],
) -> None:
    folder, parts, others = folders
    if options.files:
        # Files are read in forked processes, so this comes before there are threads.
        with make_world(folder, parts, others, limits, 2) as world:
            undisturbed = _make_finished_run(world)
        task = bars.add_task("files", total=options.files)
        result["files"] = alter_files(
            folder, undisturbed, options.files, options.seed, lambda n: bars.advance(task, n)
        )
        write_all(options.out, result)
    if options.runs:
        with make_world(folder, parts, others, limits, options.epochs) as world:
            _try_matrix(options, cases, world, bars, result)
    if options.fuzz:
        task = bars.add_task("requests", total=options.fuzz)
        result["fuzz"] = send_bad_requests(
            _divide_topology(folder), options.fuzz, options.seed, lambda n: bars.advance(task, n)
        )
        write_all(options.out, result)
    if options.load:
        task = bars.add_task("load", total=4)

        def report(load: dict[str, Any]) -> None:
            result["load"] = load
            bars.advance(task)
            write_all(options.out, result)

        load_server(folder, parts, options.load, options.seed, report)


def _try_matrix(
    options: argparse.Namespace,
    cases: list[str],
    world: World,
    bars: Progress,
    result: dict[str, Any],
) -> None:
    task = bars.add_task("a run that nothing happens to", total=options.runs)
    # The first one warms caches.
    measure(world)
    undisturbed = measure(world)
    trials = draw_trials(options.runs, cases, world.epochs, options.seed)
    done: list[Trial] = []

    def begin(trial: Trial) -> None:
        wrong = sum(result.outcome == WRONG for result in done)
        bars.update(task, description=f"{wrong} wrong; {trial.case}")

    for number, trial in enumerate(try_all(world, undisturbed, trials, options.at_once, begin), 1):
        done.append(trial)
        bars.advance(task)
        result["matrix"] = summarise(done, options.runs, undisturbed, world.limits)
        is_turn = number % _PAGE_EVERY == 0
        write_all(options.out, result, page=is_turn)
        if is_turn and not bars.console.is_terminal:
            # Bars are not drawn into a log.
            wrong = len(result["matrix"]["wrong"])
            print(f"{number} of {options.runs} runs, {wrong} wrong", flush=True)


def _make_finished_run(world: World) -> Path:
    """Train a run to its end, and return its folder."""
    with running(world, "finished", 0) as run:
        if run.process.wait():
            raise RequestError(f"bench faults: a run that nothing happens to fails: {run.text}")
        kept = world.folder / "kept"
        run.run_dir.rename(kept)
    return kept


def divide(folder: Path) -> tuple[Path, Path]:
    """Make two graphs of the same shape, and divide each over two servers."""
    folders = []
    for name, number in (("parts", "0"), ("other-parts", "1")):
        graph = folder / f"graph-{number}"
        make = ["dataset", "make", "arxiv-like", "--scale", _SCALE, "--seed", number]
        _quietly([*make, "--out", str(graph)])
        _quietly(_partition(graph, folder / name))
        folders.append(folder / name)
    return folders[0], folders[1]


def _divide_topology(folder: Path) -> Path:
    """Divide the first graph with its topology, so that servers draw neighbours too."""
    out = folder / "topology-parts"
    _quietly([*_partition(folder / "graph-0", out), "--topology", "partitioned"])
    return out


def _partition(graph: Path, out: Path) -> list[str]:
    return ["partition", str(graph), "--servers", "2", "--method", "random", "--out", str(out)]


def _quietly(words: list[str]) -> None:
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = hopper(words)
    if code:
        raise RequestError(f"hopper {' '.join(words)}: {output.getvalue().strip()}")


@contextmanager
def _bars(console: Console) -> Iterator[Progress]:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(
        *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal
    ) as bars:
        yield bars
