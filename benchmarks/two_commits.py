"""The same training by two commits of this repository, in turns: what a change costs or saves.

usage: python benchmarks/two_commits.py --before COMMIT --graph GRAPH --out DIR
       [--engines model_centric,cooperative] [--servers 4] [--rounds 5] [--method metis]
       [--tolerance 0] [--emulate P] [--link-rate 1gbit] CONFIG.toml [--section.key VALUE ...]

``after`` is the checkout that this script lies in, ``before`` a worktree of COMMIT that is made and
removed; both run in this interpreter's environment. Each divides the graph itself, as what is
written may differ; the divisions must be the same. In every round each engine is trained by both,
whose order changes from round to round. Losses must be equal bit for bit, or to the relative
tolerance that is asked for where sums are added up in another order, or no ratio is told. Figures
are of epochs between a run's first and last, and of whole runs from start to end; ratios are
``after`` over ``before`` of a round, with their interval over the rounds.

Writes ``DIR/result.json``, ``DIR/README.md`` and ``DIR/picture.webp``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, median
from typing import Any

from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
# Imported last, since PYTHONPATH decides which commit the packages are from.
sys.path.append(str(ROOT))
SIDES = ("before", "after")
RUN_SECONDS = 1800.0


def train(arguments: list[str]) -> None:
    """Train once in the commit whose packages are on the path, and print what was measured.

    What it imports must be there in both commits.
    """
    from hopper.bench.emulate.hosts import emulate_hosts
    from hopper.bench.emulate.request import make_request
    from hopper.bench.emulate.train import train_on_hosts
    from hopper.bench.statistics import measured_epochs
    from hopper.bench.train_process import train_in_process
    from hopper.signal_handlers import end_on_signals
    from hopper.train.results import EPOCHS_FILE

    file, run_dir, emulate, link_rate = arguments
    with end_on_signals():
        begun = time.monotonic()
        if int(emulate):
            with emulate_hosts(make_request(int(emulate), link_rate, None, None)) as hosts:
                if not hosts.effective:
                    sys.exit(f"--emulate: {hosts.why_not}")
                begun = time.monotonic()
                summary = train_on_hosts(hosts, "run", Path(file), Path(run_dir), [], RUN_SECONDS)
        else:
            summary = train_in_process("run", Path(file), Path(run_dir), [], RUN_SECONDS)
        wall = time.monotonic() - begun
    epochs = measured_epochs(summary)
    lines = (Path(run_dir) / EPOCHS_FILE).read_text().splitlines()
    entry = {
        "seconds": fmean(epoch["seconds"] for epoch in epochs),
        "wall_seconds": wall,
        "peak_rss_mib": max(summary["peak_rss_mib"]),
        "losses": [json.loads(line)["iteration_losses"] for line in lines],
        "feature_bytes": epochs[-1]["bytes"]["feature"],
    }
    print(json.dumps(entry))


def main() -> int:
    """Compare two commits. Return 1 if they do not train the same."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", metavar="CONFIG.toml")
    parser.add_argument("--before", required=True, metavar="COMMIT")
    parser.add_argument("--graph", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR")
    parser.add_argument("--engines", default="model_centric,cooperative", metavar="A,B,...")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--method", default="metis")
    parser.add_argument("--tolerance", type=float, default=0.0)
    parser.add_argument("--emulate", type=int, default=0, metavar="P")
    parser.add_argument("--link-rate", default="1gbit")
    options, overrides = parser.parse_known_args()
    console = Console()
    engines = [engine.strip() for engine in options.engines.split(",")]
    with (
        tempfile.TemporaryDirectory(prefix="two-commits-") as name,
        _worktree(Path(name), options.before) as before,
    ):
        work, roots = Path(name), {"before": before, "after": ROOT}
        parts = {side: work / f"parts-{side}" for side in SIDES}
        for side in SIDES:
            _run(
                roots[side], work,
                ["-m", "hopper.cli", "partition", str(options.graph.absolute()), "--servers",
                 str(options.servers), "--out", str(parts[side]), "--method", options.method,
                 *([] if options.method == "meta" else ["--locality-roots", "0"])],
            )  # fmt: skip
        _check_same(parts)
        runs: list[dict[str, Any]] = []
        for round_index in range(options.rounds):
            for engine in engines:
                for side in SIDES if round_index % 2 == 0 else SIDES[::-1]:
                    file = work / "config.json"
                    _run(roots[side], work, ["-c", WRITE_CONFIG, options.config, str(file),
                                             str(parts[side]), engine, *overrides])  # fmt: skip
                    folder = work / f"{engine}-{side}-{round_index}"
                    words = ["--train", str(file), str(folder), str(options.emulate)]
                    output = _run(roots[side], work, [str(Path(__file__).resolve()), *words,
                                                    options.link_rate])  # fmt: skip
                    run = json.loads(output.splitlines()[-1])
                    runs.append({"engine": engine, "side": side, "round": round_index} | run)
                    console.print(
                        f"round {round_index}, {engine}, {side}: {run['seconds']:.3f} s an epoch, "
                        f"{run['wall_seconds']:.1f} s in all",
                        highlight=False,
                    )
        result = _result(options, overrides, engines, runs)
    options.out.mkdir(parents=True, exist_ok=True)
    from hopper.bench.results import format_result
    from hopper.whole_files import write_text

    write_text(options.out / "result.json", format_result(result))
    if result["ratios"] is not None:
        _draw(result, options.out / "picture.webp")
    write_text(options.out / "README.md", "\n".join(_page(result)) + "\n")
    console.print((options.out / "README.md").read_text(), markup=False, highlight=False)
    return 0 if result["ratios"] is not None else 1


# Let the commit that reads the configuration write it, since keys may differ.
WRITE_CONFIG = """
import pathlib, sys
from hopper.config import load_config
config, file, parts, engine, *overrides = sys.argv[1:]
overrides += ["--data.partitioned", parts, "--train.engine", engine]
pathlib.Path(file).write_text(load_config(config, overrides).model_dump_json())
"""


@contextmanager
def _worktree(work: Path, commit: str) -> Iterator[Path]:
    path = work / "before"
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", str(path), commit], check=True, capture_output=True)
    try:
        yield path
    finally:
        subprocess.run([*git, "remove", "--force", str(path)], check=True, capture_output=True)


def _run(root: Path, work: Path, words: list[str]) -> str:
    """Run Python with the packages of a checkout. Return its output."""
    words = [str(Path(word).absolute()) if word.endswith(".toml") else word for word in words]
    done = subprocess.run(
        [sys.executable, *words],
        # The present folder must not be on the path of either commit.
        cwd=work,
        env=os.environ | {"PYTHONPATH": str(root), "PYTHONSAFEPATH": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return done.stdout


def _check_same(parts: Mapping[str, Path]) -> None:
    for file in sorted(parts["before"].glob("maps/*/global_ids.npy")):
        other_file = parts["after"] / file.relative_to(parts["before"])
        if file.read_bytes() != other_file.read_bytes():
            sys.exit("the two commits divide the graph differently")


def _result(
    options: argparse.Namespace,
    overrides: list[str],
    engines: list[str],
    runs: list[dict[str, Any]],
) -> dict[str, Any]:
    from hopper.bench.machine import commit, machine, versions
    from hopper.paired_ratio import paired_ratio

    losses = {engine: [run["losses"] for run in runs if run["engine"] == engine]
              for engine in engines}  # fmt: skip
    off = {engine: max(_difference(runs_losses[0], losses_of_run) for losses_of_run in runs_losses)
           for engine, runs_losses in losses.items()}  # fmt: skip
    different = [engine for engine, most in off.items() if most > options.tolerance]
    ratios: dict[str, Any] = {}
    for engine in engines:
        sides = {side: [run for run in runs if (run["engine"], run["side"]) == (engine, side)]
                 for side in SIDES}  # fmt: skip
        ratios[engine] = {
            key: asdict(paired_ratio(*([run[key] for run in sides[s]] for s in SIDES[::-1])))
            for key in ("seconds", "wall_seconds")
        }
    revision = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", options.before],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return {
        "schema": 1,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "before": revision.stdout.strip(),
        "machine": machine(),
        "versions": versions(),
        "graph": options.graph.name,
        "config": Path(options.config).name,
        "overrides": overrides,
        "servers": options.servers,
        "emulate": options.emulate,
        "link_rate": options.link_rate if options.emulate else None,
        "rounds": options.rounds,
        "runs": [{key: value for key, value in run.items() if key != "losses"} for run in runs],
        "method": options.method,
        "loss_difference": off,
        "different_losses": different,
        "ratios": None if different else ratios,
    }


def _difference(losses: list[list[float]], others: list[list[float]]) -> float:
    """Return the largest relative difference between the losses of two runs' iterations."""
    pairs = [
        pair
        for iteration_losses in zip(losses, others, strict=True)
        for pair in zip(*iteration_losses, strict=True)
    ]
    return max(abs(a - b) / max(abs(a), abs(b), 1e-12) for a, b in pairs)


def _page(result: Mapping[str, Any]) -> Iterator[str]:
    from benchmarks.faults.page import Table, markdown
    from benchmarks.hifuse_ablation import ratio_text
    from hopper.bench.machine import tell_machine

    yield f"# {result['commit'][:12]} after {result['before'][:12]}: {result['graph']}"
    yield ""
    yield (
        f"- {result['date']}; {tell_machine(result['machine'])}; "
        f"{result['config']} {' '.join(result['overrides'])}"
    )
    hosts = f"{result['emulate']} emulated hosts, links of {result['link_rate']}"
    where = hosts if result["emulate"] else "loopback"
    yield f"- {result['method']} over {result['servers']} servers; {where}"
    yield f"- {result['rounds']} rounds, in turns; first and last epoch of each run not measured"
    if result["ratios"] is None:
        different = ", ".join(result["different_losses"])
        yield f"- **Different losses**: {different}; nothing is compared"
        return
    off = max(result["loss_difference"].values())
    yield (
        f"- losses of an engine's runs differ by {off:.1e} at most, relatively"
        if off
        else "- losses equal bit for bit in all runs of an engine"
    )
    yield ""
    yield "![epochs of both, round by round](picture.webp)"
    yield ""
    headings = (
        *("engine", "epoch before, s", "after, s", "after over before", "whole run"),
        *("peak of a rank before, MiB", "after, MiB"),
    )
    rows = [
        [
            engine,
            *(f"{median(_run_values(result, engine, side, 'seconds')):.3f}" for side in SIDES),
            *(ratio_text(ratios[key], places=3) for key in ("seconds", "wall_seconds")),
            *(
                f"{median(_run_values(result, engine, side, 'peak_rss_mib')):,.0f}"
                for side in SIDES
            ),
        ]
        for engine, ratios in result["ratios"].items()
    ]
    yield from markdown(Table("", headings, rows))
    yield ""
    yield (
        "Epochs and peaks (resident memory of the rank that has most) are medians over rounds; "
        "ratios geometric means with their 95 % interval."
    )


def _run_values(result: Mapping[str, Any], engine: str, side: str, key: str) -> list[float]:
    """Return what was measured, by round."""
    runs = result["runs"]
    return [run[key] for run in runs if (run["engine"], run["side"]) == (engine, side)]


def _draw(result: Mapping[str, Any], path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from hopper.palette import hex_of

    engines = list(result["ratios"])
    figure = Figure(figsize=(3.2 * len(engines) + 1, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, engine in zip(
        figure.subplots(1, len(engines), squeeze=False)[0], engines, strict=True
    ):
        for side, colour in zip(SIDES, (hex_of("grey"), hex_of("blue")), strict=True):
            seconds = _run_values(result, engine, side, "seconds")
            axes.plot(range(1, len(seconds) + 1), seconds, "o-", color=colour, label=side)
        axes.set(title=engine, xlabel="round", ylabel="seconds an epoch", ylim=(0, None))
        axes.legend()
    figure.savefig(path, dpi=110, pil_kwargs={"lossless": True})


if __name__ == "__main__":
    if sys.argv[1:2] == ["--train"]:
        train(sys.argv[2:])
    else:
        sys.exit(main())
