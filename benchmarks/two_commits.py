"""The same training by two commits of this repository, in turns: what a change costs or saves.

usage: python -m benchmarks.two_commits --before COMMIT --graph GRAPH --out DIR
           [--engines model_centric,cooperative] [--servers 4] [--method metis] [--tolerance 0]
           [--emulate P] [--link-rate 1gbit] CONFIG.toml [--section.key=VALUE ...]

``after`` is this checkout, ``before`` a worktree of COMMIT that is made and removed; both run in
this interpreter's environment. Each divides the graph itself, as what is written may differ; the
divisions must be the same. Each engine is trained by both in every round. Losses must be equal bit
for bit, or to a relative tolerance where sums are added up in another order. A cell is a graph, an
engine and the earlier commit. Lines have the mean seconds of a run's epochs between its first and
last, those of the whole run, and the resident MiB of its largest rank.
"""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.rounds import Results, make_parser, positive, take_turns
from hopper.process.signal_handlers import end_on_signals

ROOT = Path(__file__).resolve().parents[1]


def train(
    config: str, parts: str, engine: str, folder: str, hosts: str, rate: str, *words: str
) -> None:
    """Train once in the commit whose packages are on the path, and print what was measured.

    Its source is run by both commits, so what it imports must be there in both; the configuration
    is read and written by the commit that trains, since keys may differ.
    """
    import json
    import sys
    import time
    from pathlib import Path
    from statistics import fmean

    from hopper.bench.emulate.hosts import emulate_hosts
    from hopper.bench.emulate.request import make_request
    from hopper.bench.emulate.train import train_on_hosts
    from hopper.bench.statistics import measured_epochs
    from hopper.bench.train_process import train_in_process
    from hopper.config import load_config
    from hopper.process.signal_handlers import end_on_signals
    from hopper.train.results import EPOCHS_FILE

    words += ("--data.partitioned", parts, "--train.engine", engine)
    file, run_dir, limit = Path(f"{folder}.json"), Path(folder), 1800.0
    file.write_text(load_config(config, list(words)).model_dump_json())
    with end_on_signals():
        begun = time.monotonic()
        if int(hosts):
            with emulate_hosts(make_request(int(hosts), rate, None, None)) as cluster:
                if not cluster.effective:
                    sys.exit(f"--emulate: {cluster.why_not}")
                begun = time.monotonic()
                summary = train_on_hosts(cluster, "run", file, run_dir, [], limit)
        else:
            summary = train_in_process("run", file, run_dir, [], limit)
        seconds = time.monotonic() - begun
    epochs = measured_epochs(summary)
    lines = (run_dir / EPOCHS_FILE).read_text().splitlines()
    entry = {
        "epoch seconds": fmean(epoch["seconds"] for epoch in epochs),
        "run seconds": seconds,
        "peak MiB": max(summary["peak_rss_mib"]),
        "losses": [loss for line in lines for loss in json.loads(line)["iteration_losses"]],
    }
    print(json.dumps(entry))


class Commit:
    """A checkout, and the graph that it has divided."""

    def __init__(self, root: Path, work: Path, options: Any) -> None:
        self._root, self._work, self._options = root, work, options
        self.parts = work / "parts"
        self.losses: dict[str, list[list[float]]] = {}
        work.mkdir()
        locality = [] if options.method == "meta" else ["--locality-roots", "0"]
        self._run(
            "-m", "hopper.cli", "partition", str(options.graph.absolute()), "--servers",
            str(options.servers), "--out", str(self.parts), "--method", options.method, *locality,
        )  # fmt: skip

    def train(self, engine: str, _: int) -> dict[str, float]:
        """Train by an engine. Return what was measured, and keep the losses."""
        options, runs = self._options, self.losses.setdefault(engine, [])
        code = f"{inspect.getsource(train)}\nimport sys\ntrain(*sys.argv[1:])"
        output = self._run(
            "-c", "from __future__ import annotations\n" + code,
            str(Path(options.config).absolute()), str(self.parts), engine,
            str(self._work / f"{engine}-{len(runs)}"), str(options.emulate), options.link_rate,
            *options.overrides,
        )  # fmt: skip
        entry: dict[str, Any] = json.loads(output.splitlines()[-1])
        runs.append(entry.pop("losses"))
        return entry

    def _run(self, *words: str) -> str:
        """Run Python with the packages of the checkout. Return its output."""
        done = subprocess.run(
            [sys.executable, *words],
            # The present folder must not be on the path of either commit.
            cwd=self._work,
            env=os.environ | {"PYTHONPATH": str(self._root), "PYTHONSAFEPATH": "1"},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
        return done.stdout


@contextmanager
def worktree(path: Path, commit: str) -> Iterator[Path]:
    """Check a commit out, and remove it afterwards."""
    git = ["git", "-C", str(ROOT), "worktree"]
    subprocess.run([*git, "add", "--detach", str(path), commit], check=True, capture_output=True)
    try:
        yield path
    finally:
        subprocess.run([*git, "remove", "--force", str(path)], check=True, capture_output=True)


def loss_difference(runs: Sequence[Sequence[float]]) -> float:
    """Return the largest relative difference between the losses of the first run and the others."""
    losses = np.array(runs)
    return float((np.abs(losses - losses[0]) / np.maximum(np.abs(losses[0]), 1e-12)).max())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Return 1 if the two commits do not train the same."""
    parser = make_parser(__doc__)
    parser.add_argument("config", metavar="CONFIG.toml")
    parser.add_argument("--before", required=True, metavar="COMMIT")
    parser.add_argument("--graph", type=Path, required=True)
    parser.add_argument("--engines", default="model_centric,cooperative", metavar="A,B,...")
    parser.add_argument("--servers", type=positive, default=4)
    parser.add_argument("--method", default="metis")
    parser.add_argument("--tolerance", type=float, default=0.0)
    parser.add_argument("--emulate", type=int, default=0, metavar="P")
    parser.add_argument("--link-rate", default="1gbit")
    options, options.overrides = parser.parse_known_args(arguments)
    command = ["git", "-C", str(ROOT), "rev-parse", "--short=12", options.before]
    revision = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    results = Results("two-commits", options.out)
    with (
        end_on_signals(),
        tempfile.TemporaryDirectory(prefix="two-commits-") as name,
        worktree(Path(name) / "checkout", options.before) as root,
    ):
        sides = {
            side: Commit(path, Path(name) / side, options)
            for side, path in (("before", root), ("after", ROOT))
        }
        before, after = sides.values()
        for file in before.parts.glob("maps/*/global_ids.npy"):
            if file.read_bytes() != (after.parts / file.relative_to(before.parts)).read_bytes():
                sys.exit("the two commits divide the graph differently")
        for engine in options.engines.split(","):
            trains = {side: partial(commit.train, engine) for side, commit in sides.items()}
            measured = take_turns(trains, options.rounds, warm_up=0)
            off = loss_difference([*before.losses[engine], *after.losses[engine]])
            if off > options.tolerance:
                print(f"{engine}: losses differ by {off:.1e}; nothing is compared")
                return 1
            cell = f"{options.graph.name}, {engine}, after {revision}"
            results.add(cell, measured, {"after": ["before"]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
