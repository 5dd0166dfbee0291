"""A training loop of one's own under Hopper's loaders, beside ``zero_hop`` and DistDGL.

usage: python -m benchmarks.loaders --out DIR [--preset arxiv-like] [--scale 0.25] [--rounds 5]
           [--hosts 4] [--link-rate 1gbit] [--sides A/B/...] [--distdgl] [--section.key=VALUE ...]

The model is GraphSAGE of PyG's ``SAGEConv``, with equal first values and the same global batches
and draws on all sides; their losses are compared. Sides train in turns over emulated hosts:
``zero_hop`` is ``hopper train``; ``blocks`` is ``hopper.loader`` in a script; ``pyg`` is
``hopper.pyg.NeighborLoader``, with each rank's roots at home or (``pyg, random``) wherever they
live; ``pyg, no pipeline`` reads nothing ahead. ``stores`` is PyG's own loader over Hopper's stores,
with workers or without, and has other draws, as DistDGL has. Lines have the mean seconds of a run's
epochs between its first and last, the MB that all hosts sent in them, and of a script the MiB by
which a rank has grown, at most, since the second epoch.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.peers.distdgl import PEERS
from benchmarks.rounds import Results, Side, make_parser, positive, take_turns
from hopper.bench.emulate.hosts import EmulatedCluster, emulate_hosts
from hopper.bench.emulate.request import make_request
from hopper.bench.emulate.train import train_on_hosts
from hopper.bench.guest import Guest
from hopper.bench.statistics import measured_epochs
from hopper.config import make_config
from hopper.graph import GraphDirectory
from hopper.graph.synthesise import make
from hopper.partition import partition_graph
from hopper.process.signal_handlers import end_on_signals

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = Path(__file__).with_name("loader_script.py")
LIMIT = 1800.0
TOLERANCE = 1e-3
"""float32, with sums in other orders, over some hundred iterations"""
ENGINE = "zero_hop"
SIDES: dict[str, list[str]] = {
    ENGINE: [f"--train.engine={ENGINE}", "--model.name=examples.pyg_model:PygSage"],
    "blocks": [f"--train.script={SCRIPT} blocks home"],
    "pyg": [f"--train.script={SCRIPT} pyg home"],
    "pyg, random": [f"--train.script={SCRIPT} pyg random"],
    "pyg, no pipeline": [f"--train.script={SCRIPT} pyg home", "--pipeline.depth=0"],
    "stores": [f"--train.script={SCRIPT} stores 0"],
    "stores, 2 workers": [f"--train.script={SCRIPT} stores 2"],
}


class Trainings:
    """Trains by each side over the same hosts, and keeps the losses of Hopper's sides."""

    def __init__(self, cluster: EmulatedCluster, config: Path, work: Path) -> None:
        self._cluster, self._config, self._work = cluster, config, work
        self._runs = 0
        self.losses: dict[str, list[float]] = {}

    def train(self, side: str, words: Sequence[str], _: int) -> dict[str, float]:
        """Train by a side of Hopper's. Return the seconds and MB of its measured epochs."""
        self._runs += 1
        folder = self._work / f"run-{self._runs}"
        summary = train_on_hosts(self._cluster, side, self._config, folder, words, LIMIT)
        if not side.startswith("stores"):
            self.losses[side] = [epoch["loss"] for epoch in summary["epochs"]]
        return _figures(summary)

    def train_guest(self, guest: Guest, _: int) -> dict[str, float]:
        """Train by another system."""
        self._runs += 1
        # Only a first round is scored.
        return _figures(guest.train(self._cluster, 1, self._work / f"run-{self._runs}"))

    def largest_difference(self) -> float:
        """Return the largest relative difference of an epoch's loss between two sides."""
        first, *others = self.losses.values()
        pairs = [pair for losses in others for pair in zip(losses, first, strict=True)]
        return max((abs(loss / right - 1) for loss, right in pairs), default=0.0)


def _figures(summary: Mapping[str, Any]) -> dict[str, float]:
    epochs = measured_epochs(summary)
    figures = {
        "epoch seconds": fmean(epoch["seconds"] for epoch in epochs),
        "epoch MB": fmean(sum(epoch["nic_bytes"]) for epoch in epochs) / 1e6,
    }
    if "rss_mib" in epochs[0]:
        ends = zip(summary["epochs"][1]["rss_mib"], summary["epochs"][-1]["rss_mib"], strict=True)
        figures["grown MiB"] = max(last - second for second, last in ends)
    return figures


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Return 1 if the sides do not train the same."""
    parser = make_parser(__doc__)
    parser.add_argument("--preset", default="arxiv-like")
    parser.add_argument("--scale", type=float, default=0.25)
    parser.add_argument("--hosts", type=positive, default=4)
    parser.add_argument("--link-rate", default="1gbit")
    parser.add_argument("--sides", default="/".join(SIDES), help="some of them; default all")
    parser.add_argument("--distdgl", action="store_true", help="beside benchmarks/peers")
    options, overrides = parser.parse_known_args(arguments)
    # Ranks import the model and the script from this checkout.
    os.environ["PYTHONPATH"] = str(ROOT)
    sys.path.insert(0, str(ROOT))
    results = Results("loaders", options.out)
    with tempfile.TemporaryDirectory(prefix="loaders-") as name, end_on_signals():
        work = Path(name)
        graph = GraphDirectory.open(make(options.preset, work / "graph", scale=options.scale))
        parts = partition_graph(graph, work / "parts", options.hosts)
        shared = {
            "data": {"partitioned": str(parts.path)},
            "model": {"name": "sage", "layers": 2, "hidden": 64, "dropout": 0.0},
            "sampler": {"fanouts": [10, 10], "expansion": "once"},
            "train": {"epochs": 4, "batch_size": 128, "evaluate_every": 0},
        }
        config = make_config(shared, overrides)
        file = work / "config.json"
        file.write_text(config.model_dump_json())
        with emulate_hosts(make_request(options.hosts, options.link_rate)) as cluster:
            if not cluster.effective:
                sys.exit(f"emulated hosts: {cluster.why_not}")
            trainings = Trainings(cluster, file, work)
            sides: dict[str, Side] = {
                side: partial(trainings.train, side, SIDES[side])
                for side in options.sides.split("/")
            }
            if options.distdgl:
                peer = PEERS["distdgl"]
                why = peer.why_not(config)
                if why is not None:
                    sys.exit(f"--distdgl: {why}")
                guest = peer.join(config, graph, parts, work)
                sides[peer.role] = partial(trainings.train_guest, guest)
            measured = take_turns(sides, options.rounds, warm_up=0)
    off = trainings.largest_difference()
    print(f"largest relative difference of an epoch's loss between sides: {off:.1e}")
    if off > TOLERANCE:
        print("the sides do not train the same; nothing is compared")
        return 1
    hosts = f"{options.hosts} hosts, {options.link_rate}, {config.train.epochs} epochs"
    cell = f"{graph.schema.name} x {options.scale:g}, {hosts}"
    against = {side: [ENGINE] for side in sides if side != ENGINE}
    against |= {side: ["pyg"] for side in ("pyg, random", "pyg, no pipeline")}
    results.add(cell, measured, against | {"stores, 2 workers": ["stores"]})
    return 0


if __name__ == "__main__":
    sys.exit(main())
