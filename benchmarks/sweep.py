"""Several trials trained at once against as many separate runs.

``python benchmarks/sweep.py --graph PARTITIONED --out DIR [--trials 4] [--rounds 3] [--emulate P]``
measures, for the same trials (their seeds and learning rates differ):

- ``sweep``: engine hop with independent replicas, data order and draws shared;
- ``sweep, own draws``: the same with ``hop.share_sampling = false`` (other draws, so other losses);
- ``model_centric``, ``zero_hop``: one run after the other.

All sides take turns round by round, in rotated order. Figures are of all trials together, over the
epochs after the first of each run; ``wall_seconds`` are from the start of the first process to the
end of the last. In short runs before, in float64, losses of ``sweep`` must equal those of the
separate runs, or no ratio is printed.
Any key can be overridden as ``--section.key VALUE``. Writes ``DIR/sweep.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from hopper.bench.emulate.hosts import EmulatedCluster, emulate_hosts
from hopper.bench.emulate.request import make_request
from hopper.bench.emulate.train import train_on_hosts
from hopper.bench.machine import commit, machine, versions
from hopper.bench.results import format_result
from hopper.bench.statistics import measured_epochs
from hopper.bench.train_process import train_in_process
from hopper.config import make_config
from hopper.errors import ClusterError
from hopper.paired_ratio import paired_ratio
from hopper.partition import PartitionedGraph
from hopper.signal_handlers import end_on_signals
from hopper.traffic import CAUSES
from hopper.train.results import EPOCHS_FILE
from hopper.whole_files import write_text

SEPARATE = ("model_centric", "zero_hop")
SIDES = ("sweep", "sweep, own draws", *SEPARATE)
CONFIG: dict[str, dict[str, Any]] = {
    "model": {"name": "sage", "layers": 3, "hidden": 16, "dropout": 0.5},
    "sampler": {"fanouts": [10, 10, 10]},
    "train": {"batch_size": 1024, "epochs": 3, "evaluate_every": 0},
}
PARITY = {"dtype": "float64", "epochs": 1, "iterations_per_epoch": 5}
"""what is other in the runs whose losses are compared: in float32 a rectifier that flips shows"""
TOLERANCE = 1e-10
RUN_SECONDS = 3600.0
RESULT_FILE = "sweep.json"


class Benchmark:
    """The runs of all sides.

    Parameters
    ----------
    values: nested values of the configuration that all runs have in common.
    train: trains a configuration file as ``train_in_process`` does.
    """

    def __init__(self, values: dict[str, Any], trials: int, work: Path, train: Any) -> None:
        self._values = values
        self._count = trials
        self._work = work
        work.mkdir()
        self._train = train

    def run(self, side: str, round_index: int) -> dict[str, Any]:
        """Train all trials the way of one side."""
        start = time.perf_counter()
        if side in SEPARATE:
            runs = [self._separate(side, round_index, trial) for trial in range(self._count)]
        else:
            runs = [self._train_together(side, round_index)]
        wall_seconds = time.perf_counter() - start
        epochs = [epoch for run in runs for epoch in measured_epochs(run)]
        network = [epoch["nic_bytes"] for epoch in epochs]
        return {
            "side": side,
            "round": round_index,
            "seconds": sum(epoch["seconds"] for epoch in epochs),
            "wall_seconds": wall_seconds,
            "bytes": {cause: sum(epoch["bytes"][cause] for epoch in epochs) for cause in CAUSES},
            "nic_bytes": None if None in network else sum(sum(counts) for counts in network),
            "stage_seconds": {
                stage: sum(epoch["stage_seconds"][stage] for epoch in epochs)
                for stage in epochs[0]["stage_seconds"]
            },
            "peak_rss_mib": [max(ranks) for ranks in
                             zip(*(run["peak_rss_mib"] for run in runs), strict=True)],
        }  # fmt: skip

    def losses(self, side: str) -> list[list[float]]:
        """Return the losses of round 0 of a side by trial."""
        folders = [f"{side}-0-{trial}" for trial in range(self._count)]
        if side not in SEPARATE:
            folders = [f"{_words(side)}-0/trial-{trial}" for trial in range(self._count)]
        outcomes = []
        for folder in folders:
            lines = (self._work / folder / EPOCHS_FILE).read_text().splitlines()
            epochs = [json.loads(line) for line in lines]
            outcomes.append([loss for epoch in epochs for loss in epoch["iteration_losses"]])
        return outcomes

    def _train_together(self, side: str, round_index: int) -> dict[str, Any]:
        shared = side == "sweep"
        seed = "train.model_seed" if shared else "train.seed"
        trials = [
            {seed: trial, "train.learning_rate": rate} for trial, rate in enumerate(self._rates())
        ]
        hop = {"replicas": "independent", "share_sampling": shared, "trials": trials}
        return self._start(f"{_words(side)}-{round_index}", "hop", {"hop": hop})

    def _separate(self, engine: str, round_index: int, trial: int) -> dict[str, Any]:
        train = {"model_seed": trial, "learning_rate": self._rates()[trial]}
        return self._start(f"{engine}-{round_index}-{trial}", engine, {"train": train})

    def _rates(self) -> list[float]:
        return [0.003 / 2**trial for trial in range(self._count)]

    def _start(self, name: str, engine: str, changes: dict[str, Any]) -> dict[str, Any]:
        values = {section: dict(keys) for section, keys in self._values.items()}
        for section, keys in changes.items():
            values[section] |= keys
        values["train"]["engine"] = engine
        file = self._work / f"{name}.json"
        file.write_text(make_config(values).model_dump_json())
        summary: dict[str, Any] = self._train(name, file, self._work / name, [], RUN_SECONDS)
        return summary


def _words(side: str) -> str:
    return side.replace(", ", "-").replace(" ", "-")


def loss_difference(benchmark: Benchmark) -> float:
    """Return the largest relative difference between a trial's losses in the sweep and alone."""
    for side in ("sweep", *SEPARATE):
        benchmark.run(side, 0)
    expected = benchmark.losses("sweep")
    return max(
        abs(loss - expected_loss) / abs(expected_loss)
        for side in SEPARATE
        for losses, expected_losses in zip(benchmark.losses(side), expected, strict=True)
        for loss, expected_loss in zip(losses, expected_losses, strict=True)
    )


def ratios(runs: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return how many times less the sweep took than each other side: feature bytes, and paired
    times."""
    by_side = {side: [run for run in runs if run["side"] == side] for side in SIDES}
    sweep = by_side["sweep"]
    ratios_by_side: dict[str, dict[str, Any]] = {}
    for side in SIDES[1:]:
        fetched = sweep[0]["bytes"]["feature"]
        ratios_by_side[side] = {
            "feature_bytes": by_side[side][0]["bytes"]["feature"] / fetched if fetched else None
        }
        for key in ("seconds", "wall_seconds"):
            ratio = paired_ratio([r[key] for r in by_side[side]], [r[key] for r in sweep])
            ratios_by_side[side][key] = asdict(ratio)
    return ratios_by_side


def show(console: Console, result: dict[str, Any]) -> None:
    """Print a line for each side."""
    columns = ("features, MB", "models, MB", "gradients, MB", "s", "wall s", "sweep is faster by")
    table = Table("side", *columns, title=f"{result['trials']} trials, {result['dataset']['name']}")
    for side in SIDES:
        side_runs = [run for run in result["runs"] if run["side"] == side]
        ratio = (result["ratios"] or {}).get(side)
        ratio_cell = "" if ratio is None else f"{ratio['seconds']['mean']:.2f} x"
        if ratio is not None and ratio["seconds"]["low"] is not None:
            ratio_cell += f" ({ratio['seconds']['low']:.2f} to {ratio['seconds']['high']:.2f})"
        table.add_row(
            side,
            *(f"{side_runs[0]['bytes'][c] / 1e6:.1f}" for c in ("feature", "model", "gradient")),
            *(
                f"{sum(run[k] for run in side_runs) / len(side_runs):.2f}"
                for k in ("seconds", "wall_seconds")
            ),
            ratio_cell,
        )
    console.print(table)


def _train_anew(hosts: EmulatedCluster, *arguments: Any) -> dict[str, Any]:
    """Train on hosts with newly started ranks, as a single run would."""
    hosts.ranks.stop()
    return train_on_hosts(hosts, *arguments)


def run(options: argparse.Namespace, overrides: list[str]) -> dict[str, Any]:
    """Run all sides; writes ``out/sweep.json``."""
    console = Console()
    base = make_config(CONFIG | {"data": {"partitioned": str(options.graph)}}, overrides)
    graph = PartitionedGraph.open(options.graph)
    request = None
    if options.emulate:
        request = make_request(options.emulate, options.link_rate, options.host_cpus, None)
        request.check(base, graph.book.servers)
    runs: list[dict[str, Any]] = []
    with (
        tempfile.TemporaryDirectory(prefix="sweep-") as work,
        end_on_signals(),
        nullcontext() if request is None else emulate_hosts(request) as hosts,
    ):
        train: Any = train_in_process
        if hosts is not None:
            if not hosts.effective:
                raise ClusterError(f"--emulate: {hosts.why_not}")
            train = partial(_train_anew, hosts)
        values = base.model_dump()
        parity = values | {"train": values["train"] | PARITY}
        difference = loss_difference(
            Benchmark(parity, options.trials, Path(work) / "parity", train)
        )
        console.print(f"largest relative difference of losses: {difference:.1e}", highlight=False)
        benchmark = Benchmark(values, options.trials, Path(work) / "timed", train)
        for index in range(options.rounds):
            for turn in range(len(SIDES)):
                side = SIDES[(index + turn) % len(SIDES)]
                runs.append(benchmark.run(side, index))
                console.print(f"round {index}, {side}: {runs[-1]['seconds']:.2f} s",
                              highlight=False)  # fmt: skip
        emulation = None if hosts is None else hosts.describe()
    result = {
        "schema": 1,
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine() | {"emulation": emulation},
        "versions": versions(),
        # Paths of this machine do not belong into a result.
        "config": base.model_dump() | {"data": {"partitioned": options.graph.name}},
        "dataset": {"name": graph.schema.name, "servers": graph.book.servers},
        "trials": options.trials,
        "runs": runs,
        "max_relative_loss_difference": difference,
        "ratios": ratios(runs) if difference <= TOLERANCE else None,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / RESULT_FILE, format_result(result))
    show(console, result)
    if difference > TOLERANCE:
        console.print("the sides did not train the same, so nothing is compared")
    return result


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--graph", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--emulate", type=int, metavar="P")
    parser.add_argument("--link-rate", default=None)
    parser.add_argument("--host-cpus", type=float, default=None)
    options, overrides = parser.parse_known_args()
    return 0 if run(options, overrides)["ratios"] is not None else 1


if __name__ == "__main__":
    sys.exit(main())
