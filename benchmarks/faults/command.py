"""``hopper bench faults --out DIR``: what runs, feature servers and commands stand.

``DIR/faults.csv`` gets a line for each fault, with the outcome that was expected beforehand (see
cases.py) and the one that came; latencies and rates go to ``DIR/summary.csv``. ``hopper bench
faults`` finds this module in a checkout and calls :func:`run`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.progress import track

from benchmarks.faults.bad_requests import send_bad_requests
from benchmarks.faults.cases import CASES
from benchmarks.faults.interruptions import interrupt_commands
from benchmarks.faults.load import CLIENTS, load_server
from benchmarks.faults.matrix import draw_trials, measure, try_all, usable_cases
from benchmarks.faults.outcomes import FAULTS_FILE, Outcome, print_outcomes, write_outcomes
from benchmarks.faults.running import Limits, make_world
from benchmarks.rounds import Results
from hopper.cli import main as hopper
from hopper.cli.numbers import seed, whole
from hopper.errors import RequestError
from hopper.scratch import scratch_folder
from hopper.signal_handlers import end_on_signals

_SCALE = "0.005"
_WRITTEN_EVERY = 10
"""outcomes, after which the file is written again"""


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
    parser.add_argument("--out", type=Path, metavar="DIR", help=f"where {FAULTS_FILE} is written")
    parser.add_argument("--list", action="store_true", help="list the cases")
    parser.add_argument("--runs", type=whole, default=500, metavar="N", help="default 500")
    parser.add_argument("--cases", metavar="A,B", help="some of them, as --list names them")
    parser.add_argument("--seed", type=seed, default=0, metavar="K", help="default 0")
    parser.add_argument("--at-once", type=whole, default=2, metavar="N", help="runs side by side")
    parser.add_argument("--epochs", type=whole, default=6, metavar="N", help="of a run; default 6")
    parser.add_argument(
        "--grace", type=float, default=Limits.grace, metavar="SECONDS",
        help=f"that a run may take beyond a deadline; default {Limits.grace:g}",
    )  # fmt: skip
    parser.add_argument(
        "--fuzz", type=whole, default=0, metavar="REQUESTS",
        help="malformed ones to a feature server, beside a client with valid ones",
    )  # fmt: skip
    parser.add_argument(
        "--interruptions", type=whole, default=0, metavar="N", help="of commands that write folders"
    )
    few, many = CLIENTS
    parser.add_argument(
        "--load", type=float, default=0.0, metavar="SECONDS",
        help=f"of {few} clients of one server, then of {many}, without TLS and with it",
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
            print(f"{case.word}: {case.expected}")
        return 0
    cases = _check(options, overrides)
    # A shell starts background jobs with Ctrl-C ignored, and every run would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    outcomes: list[Outcome] = []
    try:
        with end_on_signals(), scratch_folder("hopper-faults-") as folder:
            total = options.runs + options.interruptions
            for outcome in track(_try_all(options, cases, folder), "faults", total=total):
                outcomes.append(outcome)
                if len(outcomes) % _WRITTEN_EVERY == 0:
                    write_outcomes(options.out, outcomes)
    finally:
        write_outcomes(options.out, outcomes)
        print_outcomes(outcomes)
    return int(any(outcome.is_wrong for outcome in outcomes))


def _check(options: argparse.Namespace, overrides: Sequence[str]) -> list[str]:
    """Return the cases to try."""
    if overrides:
        raise RequestError(f"bench faults: {overrides[0]}: runs have a configuration of their own")
    if options.out is None:
        raise RequestError("bench faults: --out: name a folder")
    for name in ("runs", "at_once", "epochs", "fuzz", "interruptions"):
        value, least = getattr(options, name), int(name in ("at_once", "epochs"))
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


def _try_all(options: argparse.Namespace, cases: list[str], folder: Path) -> Iterator[Outcome]:
    """Yield the outcomes of all that was asked for."""
    parts, others = divide(folder)
    limits, results = Limits(grace=options.grace), Results("feature-service-faults", options.out)
    if options.runs:
        with make_world(folder, parts, others, limits, options.epochs) as world:
            measure(world)  # warms caches
            trials = draw_trials(options.runs, cases, world.epochs, options.seed)
            yield from try_all(world, measure(world), trials, options.at_once)
    if options.interruptions:
        yield from interrupt_commands(
            folder / "interruptions", options.interruptions, options.seed, options.at_once
        )
    if options.fuzz:
        out = folder / "topology-parts"
        run_quietly([*_partition(folder / "graph-0", out), "--topology", "partitioned"])
        yield from send_bad_requests(out, options.fuzz, options.seed, results)
    if options.load:
        yield from load_server(folder, parts, options.load, options.seed, results)


def divide(folder: Path) -> tuple[Path, Path]:
    """Make two graphs of the same shape, and divide each over two servers."""
    folders = folder / "parts", folder / "other-parts"
    for number, out in enumerate(folders):
        graph = folder / f"graph-{number}"
        make = ["dataset", "make", "arxiv-like", "--scale", _SCALE, "--seed", str(number)]
        run_quietly([*make, "--out", str(graph)])
        run_quietly(_partition(graph, out))
    return folders


def run_quietly(words: Sequence[str]) -> None:
    """Run a ``hopper`` command in this process. Raise RequestError with its output if it fails."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = hopper(list(words))
    if code:
        raise RequestError(f"hopper {' '.join(words)}: {output.getvalue().strip()}")


def _partition(graph: Path, out: Path) -> list[str]:
    return ["partition", str(graph), "--servers", "2", "--method", "random", "--out", str(out)]
