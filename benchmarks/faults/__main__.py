"""What runs, feature servers and commands stand.

usage: python -m benchmarks.faults --out DIR [--runs 500] [--interruptions N] [--fuzz N] [--load S]

``DIR/faults.csv`` gets a line for each fault, with the outcome that was expected beforehand (see
cases.py) and the one that came; latencies and rates go to ``DIR/summary.csv``.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import signal
import sys
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
from benchmarks.rounds import Results, positive
from hopper.cli import main as hopper
from hopper.cli.options import seed
from hopper.errors import RequestError
from hopper.files.scratch import scratch_folder
from hopper.process.signal_handlers import end_on_signals

_SCALE = "0.005"
_WRITTEN_EVERY = 10
"""outcomes, after which the file is written again"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Return 1 if something was wrong, else 0."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.faults",
        description="Let things happen to small runs over two servers, at random moments. Each "
        "case says beforehand whether a run has to recover, with the losses of a run that nothing "
        "happens to, or to end within its deadline in a line that names what failed. Some cases "
        "mount a file system or bound memory, and are tried as root only. Ends with 1 if anything "
        "else came out.",
        allow_abbrev=False,
    )
    option = parser.add_argument
    option("--out", type=Path, metavar="DIR", help=f"where {FAULTS_FILE} is written")
    option("--list", action="store_true", help="list the cases")
    option("--runs", type=seed, default=500, metavar="N", help="default 500")
    option("--cases", metavar="A,B", help="some of them, as --list names them")
    option("--seed", type=seed, default=0, metavar="K", help="default 0")
    option("--at-once", type=positive, default=2, metavar="N", help="runs side by side")
    option("--epochs", type=positive, default=6, metavar="N", help="of a run; default 6")
    grace = int(Limits.grace)
    option("--grace", type=seed, default=grace, metavar="SECONDS",
           help=f"that a run may take beyond a deadline; default {grace}")  # fmt: skip
    option("--fuzz", type=seed, default=0, metavar="REQUESTS",
           help="malformed ones to a feature server, beside a client with valid ones")  # fmt: skip
    option("--interruptions", type=seed, default=0, metavar="N", help="of commands that write")
    option("--load", type=seed, default=0, metavar="SECONDS",
           help=f"of {CLIENTS[0]} clients of one server, then of {CLIENTS[1]}")  # fmt: skip
    options = parser.parse_args(arguments)
    words = {case.word: name for name, case in CASES.items()}
    if options.list:
        for word, name in words.items():
            print(f"{word}: {CASES[name].expected}")
        return 0
    if options.out is None:
        parser.error("--out: name a folder")
    usable = usable_cases()
    asked = options.cases.split(",") if options.cases else [CASES[name].word for name in usable]
    for word in asked:
        if words.get(word) not in usable:
            why = "needs root" if word in words else "is none; --list tells them"
            parser.error(f"--cases: {word!r} {why}")
    # A shell starts background jobs with Ctrl-C ignored, and every run would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    outcomes: list[Outcome] = []
    try:
        with end_on_signals(), scratch_folder("hopper-faults-") as folder:
            trials = _try_all(options, [words[word] for word in asked], folder)
            for outcome in track(trials, "faults", total=options.runs + options.interruptions):
                outcomes.append(outcome)
                if len(outcomes) % _WRITTEN_EVERY == 0:
                    write_outcomes(options.out, outcomes)
    finally:
        write_outcomes(options.out, outcomes)
        print_outcomes(outcomes)
    return int(any(outcome.is_wrong for outcome in outcomes))


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


if __name__ == "__main__":
    sys.exit(main())
