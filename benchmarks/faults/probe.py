"""What a run, a feature server and a file have to stand, tried at random.

usage: python benchmarks/faults/probe.py --out DIR [--requests 100000] [--runs 160] [--files 500]
       [--at-once 2] [--seed 0]

requests  to one feature server: bits flipped, cut short, random bytes, fields that make no sense,
          beside connections that speak another protocol; one in ten is good, and its rows are
          compared. The server must answer every one, stay as small as it was, and end with 0.
runs      of ``hopper train`` over two servers, each with one thing that happens to it at a moment
          between its start and its end: ranks, servers and the launcher are killed, stopped or told
          to end, the disk is full, bytes are altered or kept back on their way. A run must end
          within its deadline and five seconds, leave no process, say in its last line what
          happened, and print no traceback; if it ends well, with the losses of a run that nothing
          happened to. Every fourth of the others is resumed, and must come to these losses too.
files     of partitioned directories, checkpoints, and sources of ``hopper dataset import``: altered
          in one of many ways. What has checksums must be refused in a line; sources may be read as
          another graph. No process may crash, and nothing may be left beside the destination.

Disks are filled only where it runs as root. Ends with 1 if anything of this does not hold. Writes
``DIR/result.json``, ``DIR/README.md`` and ``DIR/picture.webp``. The moments, and what is altered,
follow from the seed; what happens at a moment does not.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from altered_files import DIVISIONS, alter_files  # noqa: E402
from bad_requests import send_bad_requests  # noqa: E402
from faulty_runs import KINDS, Bench, make_faults  # noqa: E402

from benchmarks.paper.experiment import Table  # noqa: E402
from benchmarks.paper.page import markdown  # noqa: E402
from hopper.bench.machine import commit, machine, tell_machine, versions  # noqa: E402
from hopper.cli import main as hopper  # noqa: E402
from hopper.whole_files import write_text  # noqa: E402

PARTS = ("requests", "runs", "files")


def main() -> int:
    """Try everything; 1 if something did not hold."""
    parser = argparse.ArgumentParser(description="Try what a run has to stand.")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--requests", type=int, default=100_000, metavar="N")
    parser.add_argument("--runs", type=int, default=160, metavar="N")
    parser.add_argument("--files", type=int, default=500, metavar="N")
    parser.add_argument("--at-once", type=int, default=2, metavar="N", help="runs side by side")
    parser.add_argument("--seed", type=int, default=0, metavar="K")
    options = parser.parse_args()
    # A shell starts what runs in its background with Ctrl-C ignored, and so would every run be.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    console = Console()
    result: dict[str, Any] = {
        "schema": 1, "date": datetime.now(UTC).strftime("%Y-%m-%d"), "commit": commit(),
        "machine": machine(), "versions": versions(), "seed": options.seed,
    }  # fmt: skip
    with (
        tempfile.TemporaryDirectory(prefix="hopper-faults-") as name,
        Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
                 TimeElapsedColumn(), console=console) as bars,
    ):  # fmt: skip
        folder = Path(name)
        parts = folder / "parts"
        graph = [
            "dataset",
            "make",
            "arxiv-like",
            "--scale",
            "0.005",
            "--out",
            str(folder / "graph"),
        ]
        divide = ["partition", str(folder / "graph"), "--servers", "2", "--out", str(parts)]
        for command in (graph, [*divide, "--method", "random"]):
            if code := hopper(command):
                return code
        tasks = {part: bars.add_task(part, total=getattr(options, part)) for part in PARTS}
        bench = Bench(folder, parts)
        # Processes are forked to read files: before there are threads.
        result["files"] = alter_files(
            folder, bench.finished, options.files, options.seed,
            lambda count: bars.advance(tasks["files"], count),
        )  # fmt: skip
        result["runs"] = make_faults(
            bench, options.runs, options.seed, options.at_once,
            lambda count: bars.advance(tasks["runs"], count),
        )  # fmt: skip
        result["requests"] = send_bad_requests(
            parts, options.requests, options.seed,
            lambda count: bars.advance(tasks["requests"], count),
        )  # fmt: skip
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "result.json", _compact(result))
    _draw(result, options.out / "picture.webp")
    write_text(options.out / "README.md", "\n".join(_page(result)) + "\n")
    faults = [f"{part}: {fault}" for part in PARTS for fault in result[part]["faults"]]
    for fault in faults:
        console.print(fault, style="red", markup=False, soft_wrap=True)
    console.print(
        f"{len(faults)} faults; {options.out / 'README.md'}", markup=False, soft_wrap=True
    )
    return 1 if faults else 0


def _compact(result: dict[str, Any]) -> str:
    """JSON with a line for every trial."""
    trials = result["runs"]["trials"]
    marked = result | {"runs": result["runs"] | {"trials": "TRIALS"}}
    lines = ",\n   ".join(json.dumps(each) for each in trials)
    return json.dumps(marked, indent=1).replace('"TRIALS"', f"[\n   {lines}\n  ]") + "\n"


def _page(result: dict[str, Any]) -> Iterator[str]:
    requests, runs, files = (result[part] for part in PARTS)
    yield "# What runs, servers and files stand"
    yield ""
    yield (
        f"- {result['date']}, commit `{result['commit'][:12]}`; {tell_machine(result['machine'])}; "
        f"seed {result['seed']}"
    )
    yield f"- {requests['requests']:,} requests, {runs['runs']} runs, {files['files']} files: " + (
        f"{sum(len(result[part]['faults']) for part in PARTS)} faults"
    )
    yield from (f"- **{part}**: {fault}" for part in PARTS for fault in result[part]["faults"])
    yield ""
    yield "![memory of the server, and how soon runs end](picture.webp)"
    yield ""
    yield "## Requests"
    yield ""
    before, after = requests["before"], requests["after"]
    yield (
        f"{requests['requests_per_second']:,.0f} a second, beside {requests['connections']:,} "
        f"connections that speak another protocol; the slowest answer took "
        f"{requests['slowest_seconds']:.2f} s. Memory, at its lowest, grew by "
        f"{requests['growth_mib']} MiB from the fourth fifth of them to the last; open files "
        f"{before['files']} before and {after['files']} after, "
        f"threads {before['threads']} and {after['threads']}. Told to end, the server ended with "
        f"{requests['end']['exit_code']} after {requests['end']['seconds']:.1f} s."
    )
    yield ""
    statuses = sorted({each for counts in requests["statuses"].values() for each in counts})
    rows = [
        [kind, *(f"{counts.get(each, 0):,}" for each in statuses)]
        for kind, counts in requests["statuses"].items()
    ]
    yield from markdown(Table("", ("request", *statuses), rows))
    yield ""
    yield "## Runs"
    yield ""
    yield (
        f"A run that nothing happens to takes {runs['seconds_of_a_run']:.1f} s; {runs['at_once']} "
        f"at a time. `cluster.timeout_seconds` {runs['timeout_seconds']:g}, "
        f"`cluster.start_timeout_seconds` {runs['start_timeout_seconds']:g}, from when a rank has "
        f"come itself ({runs['seconds_of_its_start']:.1f} s); a run may take "
        f"{runs['grace_seconds']:g} s more. Seconds are from what happened to the end of the last "
        "process."
    )
    yield ""
    headings = ("what happened", "runs", "in training", "seconds: median", "most", "ended well",
                "resumed")  # fmt: skip
    rows = [_row(kind, trials) for kind, trials in _by_kind(runs).items()]
    yield from markdown(Table("", headings, rows))
    yield ""
    yield "## Files"
    yield ""
    rows = [
        [what, *(str(counts.get(each, 0)) for each in ("refused", "accepted", "fault"))]
        for what, counts in files["outcomes"].items()
    ]
    headings = ("what was altered", "refused in a line", "accepted", "faults")
    yield from markdown(Table("", headings, rows))
    yield ""
    yield (
        "What has checksums is accepted only where it was not altered after all (zeros over "
        f"zeros): {', '.join(DIVISIONS)}, checkpoints. Sources of `hopper dataset import` have "
        "none: an altered number is another graph."
    )


def _by_kind(runs: dict[str, Any]) -> dict[str, list[list[Any]]]:
    """The trials of every kind that was tried."""
    found = {kind: [each for each in runs["trials"] if each[0] == kind] for kind in KINDS}
    return {kind: trials for kind, trials in found.items() if trials}


def _row(kind: str, trials: list[list[Any]]) -> list[str]:
    failed = [each[3] for each in trials if each[4]]
    return [
        kind,
        str(len(trials)),
        str(sum(each[2] for each in trials)),
        f"{median(failed):.1f}" if failed else "-",
        f"{max(failed):.1f}" if failed else "-",
        str(sum(each[4] == 0 for each in trials)),
        str(sum(each[5] for each in trials)),
    ]


def _draw(result: dict[str, Any], path: Path) -> None:
    requests, runs, _ = (result[part] for part in PARTS)
    figure = Figure(figsize=(11, 5), layout="constrained")
    FigureCanvasAgg(figure)
    left, right = figure.subplots(1, 2, width_ratios=(1, 2))
    answered, memory = zip(*requests["memory_mib"], strict=True)
    left.plot([each / 1000 for each in answered], memory, color="#1b6ca8")
    left.set(ylim=(0, None), xlabel="thousand requests", ylabel="MiB", title="memory of the server")
    kinds = _by_kind(runs)
    for place, trials in enumerate(kinds.values()):
        for well, colour in ((True, "#7a9e3a"), (False, "#c0504d")):
            seconds = [each[3] for each in trials if (each[4] == 0) == well]
            right.plot(seconds, [place] * len(seconds), "o", color=colour, alpha=0.6, markersize=5)
    right.set_yticks(range(len(kinds)), kinds)
    right.invert_yaxis()
    bound = runs["timeout_seconds"] + runs["grace_seconds"]
    right.axvline(bound, color="#888888", linewidth=1)
    right.annotate(f" {bound:g} s while training", (bound, len(kinds) - 0.6), color="#666666")
    right.set(
        xlim=(0, None), xlabel="seconds from then to the end of the last process",
        title="runs that something happens to: red, ended by it; green, finished",
    )  # fmt: skip
    right.grid(axis="x", alpha=0.3)
    figure.savefig(path, dpi=110, pil_kwargs={"lossless": True})


if __name__ == "__main__":
    sys.exit(main())
