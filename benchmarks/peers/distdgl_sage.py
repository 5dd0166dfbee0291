"""Hopper's engines against DistDGL 1.1.3: same graph, partitions, GraphSAGE, batch and link.

``python benchmarks/peers/distdgl_sage.py --graph GRAPH --parts PARTITIONED --out DIR
[--link-rate 1gbit] [--fanouts 10,10,10] [--hidden 16] [--engines cooperative,zero_hop]
[--batches local,random] [--rounds 3]``

Both sides run over the same emulated hosts (root is needed), one after the other, in rounds whose
order rotates. DistDGL gets the partition that Hopper's engines use, its servers' allocator is tuned
(distdgl_host.py), and its first epoch, which warms up, is left out as Hopper's is. Its default
batches are drawn from a trainer's own nodes (``local``); ``random`` hands each trainer a random
share of all.
Accuracy is that of the final weights on the whole graph, all neighbours, by each side's own layers.
Writes ``DIR/distdgl_sage.json`` and prints a table.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import dgl
import numpy as np
import torch
from distdgl_trainer import SAGE
from rich.console import Console
from rich.table import Table
from safetensors.torch import load_file

from hopper.bench.emulate.hosts import EmulatedCluster, emulated
from hopper.bench.emulate.network import INTERFACE
from hopper.bench.emulate.request import make_request
from hopper.bench.emulate.train import threads_per_rank, train_on_hosts
from hopper.bench.machine import commit, machine, versions
from hopper.bench.results import format_result
from hopper.bench.statistics import paired_ratio
from hopper.bench.train_process import ended_by_signals
from hopper.errors import ClusterError
from hopper.graph import GraphDirectory
from hopper.partition import PartitionedGraph

HOST_SCRIPT = Path(__file__).with_name("distdgl_host.py")
NAME = "shared"
RESULT_FILE = "distdgl_sage.json"
BASE_PORT = 30050


class Peer:
    """DistDGL over emulated hosts.

    Parameters
    ----------
    options: of the command line. parts: written by :func:`divide`.
    """

    def __init__(
        self, options: argparse.Namespace, graph: GraphDirectory, parts: Path, work: Path
    ) -> None:
        self.options = options
        self.graph = graph
        self.parts = parts
        self.work = work

    def run(self, cluster: EmulatedCluster, batches: str, round_index: int) -> dict[str, Any]:
        """Train once; epochs, bytes that every host sent, and the folder of the weights."""
        options, out = self.options, self.work / f"distdgl-{batches}-{round_index}"
        out.mkdir()
        addresses = [host.network.address for host in cluster.hosts]
        ip_config = out / "ip_config.txt"
        ip_config.write_text("".join(f"{address} {BASE_PORT}\n" for address in addresses))
        schema = self.graph.schema
        target = schema.target_type()
        job = {
            "name": NAME,
            "partitioned": str(self.parts / f"{NAME}.json"),
            "ip_config": str(ip_config),
            "hosts": len(addresses),
            "addresses": addresses,
            "interface": INTERFACE,
            "threads": threads_per_rank(cluster, 1),
            "limit_seconds": options.limit,
            "batches": batches,
            "fanouts": options.fanouts,
            "batch_size": options.batch_size,
            "hidden": options.hidden,
            "in_dim": schema.node_types[target].feature_dim,
            "classes": schema.labels[target].classes,
            "learning_rate": options.learning_rate,
            "epochs": options.epochs,
            "iterations": options.iterations,
            "seed": round_index,
            "out": str(out),
        }
        (out / "job.json").write_text(json.dumps(job, indent=1))
        before = [_sent(host) for host in cluster.hosts]
        self._train(cluster, out)
        sent = [_sent(host) - first for host, first in zip(cluster.hosts, before, strict=True)]
        epochs = json.loads((out / "epochs.json").read_text())
        return {"epochs": epochs, "nic_bytes": sent, "model": str(out / "model.safetensors")}

    def _train(self, cluster: EmulatedCluster, out: Path) -> None:
        processes = []
        try:
            for index, host in enumerate(cluster.hosts):
                command = [
                    *host.place.prefix,
                    *("unshare", "--mount", "--propagation", "private"),
                    *(sys.executable, str(HOST_SCRIPT), str(out / "job.json")),
                    *("--host", str(index)),
                ]
                with (out / f"host-{index}.log").open("wb") as log:
                    processes.append(
                        subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
                    )
            deadline = time.monotonic() + self.options.limit
            for index, process in enumerate(processes):
                code = process.wait(max(1.0, deadline - time.monotonic()))
                if code != 0:
                    text = (out / f"host-{index}.log").read_text(errors="replace")
                    raise ClusterError(f"DistDGL, host {index}: exit code {code}:\n{text[-3000:]}")
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                process.wait()

    def accuracy(self, model_file: str) -> float:
        """Of the weights on the test split: the whole graph, all neighbours."""
        whole = as_dgl(self.graph)
        options, schema = self.options, self.graph.schema
        target = schema.target_type()
        model = SAGE(
            schema.node_types[target].feature_dim or 0,
            options.hidden,
            schema.labels[target].classes,
            len(options.fanouts),
        )
        model.load_state_dict(load_file(model_file))
        with torch.no_grad():
            logits = model([whole] * len(options.fanouts), whole.ndata["feat"])
        test = torch.from_numpy(np.array(self.graph.split("test")))
        return float((logits[test].argmax(1) == whole.ndata["label"][test]).float().mean())


def as_dgl(graph: GraphDirectory) -> Any:
    """The graph as DGL's, by original ids."""
    (relation,) = graph.schema.relations
    topology = graph.topology(relation)
    target = graph.schema.target_type()
    destinations = np.repeat(np.arange(topology.in_degrees.size), topology.in_degrees)
    found = dgl.graph(
        (torch.from_numpy(np.array(topology.indices)), torch.from_numpy(destinations)),
        num_nodes=topology.in_degrees.size,
    )
    mask = torch.zeros(found.num_nodes(), dtype=torch.bool)
    mask[torch.from_numpy(np.array(graph.split("train")))] = True
    found.ndata["train_mask"] = mask
    found.ndata["feat"] = torch.from_numpy(np.array(graph.features(target)))
    found.ndata["label"] = torch.from_numpy(np.array(graph.labels(target)))
    return found


def divide(graph: GraphDirectory, parts: PartitionedGraph, out: Path) -> None:
    """Write DistDGL's partitions: every node on the server on which Hopper has it."""
    target = graph.schema.target_type()
    homes = parts.book.home(target, np.array(parts.global_ids(target)))
    module = dgl.distributed.partition
    own = module.metis_partition_assignment
    module.metis_partition_assignment = lambda *_, **__: torch.from_numpy(homes)
    try:
        module.partition_graph(
            as_dgl(graph), NAME, parts.book.servers, str(out), part_method="metis", num_hops=1
        )
    finally:
        module.metis_partition_assignment = own


def _sent(host: Any) -> int:
    """Bytes that a host's interface has sent so far."""
    command = ["ip", "netns", "exec", host.network.namespace, "cat",
               f"/sys/class/net/{INTERFACE}/statistics/tx_bytes"]  # fmt: skip
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


class Hopper:
    """Hopper's engines over the same hosts."""

    def __init__(self, options: argparse.Namespace, work: Path) -> None:
        self.options = options
        self.config = work / "config.json"
        self.work = work
        values = {
            "data": {"partitioned": str(Path(options.parts).absolute())},
            "model": {
                "name": "sage",
                "layers": len(options.fanouts),
                "hidden": options.hidden,
            },
            "sampler": {"fanouts": options.fanouts},
            "train": {
                "batch_size": options.batch_size,
                "epochs": options.epochs,
                "learning_rate": options.learning_rate,
                "iterations_per_epoch": options.iterations,
                "evaluate_every": options.epochs,
                "last_batch": "keep",
            },
        }
        self.config.write_text(json.dumps(values))

    def run(self, cluster: EmulatedCluster, engine: str, round_index: int) -> dict[str, Any]:
        """Train once; its summary."""
        run_dir = self.work / f"hopper-{engine}-{round_index}"
        words = [f"--train.engine={engine}", f"--train.seed={round_index}"]
        what = f"hopper, {engine}, round {round_index + 1}"
        return train_on_hosts(cluster, what, self.config, run_dir, words, self.options.limit)


def measured(epochs: list[dict[str, Any]]) -> float:
    """Seconds a step over the epochs after the first."""
    kept = epochs[1:] or epochs
    return sum(each["seconds"] for each in kept) / sum(each["iterations"] for each in kept)


def parse() -> argparse.Namespace:
    numbers = lambda text: [int(each) for each in text.split(",")]  # noqa: E731
    words = lambda text: text.split(",")  # noqa: E731
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graph", type=Path, required=True)
    parser.add_argument("--parts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--link-rate", default="1gbit")
    parser.add_argument("--fanouts", type=numbers, default=[10, 10, 10])
    parser.add_argument("--hidden", type=int, default=16)
    parser.add_argument("--batch-size", type=int, default=1024)
    parser.add_argument("--learning-rate", type=float, default=0.003)
    parser.add_argument("--engines", type=words, default=["cooperative"])
    parser.add_argument("--batches", type=words, default=["local", "random"])
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--limit", type=float, default=1800.0)
    return parser.parse_args()


def main() -> int:
    options = parse()
    console = Console()
    graph = GraphDirectory.open(options.graph, check="shapes")
    parts = PartitionedGraph.open(options.parts)
    options.out.mkdir(parents=True, exist_ok=True)
    sides = [("hopper", engine) for engine in options.engines]
    sides += [("distdgl", batches) for batches in options.batches]
    runs: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hopper-peers-") as folder, ended_by_signals():
        work = Path(folder)
        console.print("dividing the graph for DistDGL, every node where Hopper has it")
        divide(graph, parts, work / "distdgl")
        peer, own = Peer(options, graph, work / "distdgl", work), Hopper(options, work)
        with emulated(make_request(parts.book.servers, options.link_rate)) as cluster:
            if not cluster.effective:
                console.print(f"error: no emulated hosts: {cluster.why_not}")
                return 1
            for index in range(options.rounds):
                for system, kind in [*sides[index % len(sides) :], *sides[: index % len(sides)]]:
                    if system == "hopper":
                        found = own.run(cluster, kind, index)
                        entry = {key: found[key] for key in ("epochs", "accuracy", "peak_rss_mib")}
                        entry["accuracy"] = found["accuracy"]["test"]
                    else:
                        entry = peer.run(cluster, kind, index)
                        entry["accuracy"] = peer.accuracy(entry.pop("model"))
                    runs.append({"system": system, "kind": kind, "round": index, **entry})
                    step = measured(entry["epochs"])
                    console.print(
                        f"round {index + 1}/{options.rounds}  {system}, {kind}: {step:.3f} s a "
                        f"step, test accuracy {entry['accuracy']:.4f}"
                    )
    result = {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "graph": {"name": graph.schema.name, "parts": parts.description.get("method")},
        "options": {
            key: value
            for key, value in vars(options).items()
            if key not in ("graph", "parts", "out")
        },
        "seconds_a_step": {
            f"{system}, {kind}": float(np.median(_steps(runs, system, kind)))
            for system, kind in sides
        },
        "accuracy": {
            f"{system}, {kind}": float(np.mean(_scores(runs, system, kind)))
            for system, kind in sides
        },
        "runs": [_outline(run) for run in runs],
        "ratios": ratios(runs, sides),
    }
    (options.out / RESULT_FILE).write_text(format_result(result))
    show(console, result, sides)
    return 0


def _outline(run: dict[str, Any]) -> dict[str, Any]:
    """A run without what neither times, losses nor accuracy of its epochs come from."""
    kept = ("epoch", "seconds", "iterations", "loss", "bytes")
    epochs = [{key: each[key] for key in kept if key in each} for each in run["epochs"]]
    return run | {"epochs": epochs}


def ratios(runs: list[dict[str, Any]], sides: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """How many times as long DistDGL takes for a step, round by round."""
    found = []
    for engine in (kind for system, kind in sides if system == "hopper"):
        for batches in (kind for system, kind in sides if system == "distdgl"):
            ratio = paired_ratio(_steps(runs, "distdgl", batches), _steps(runs, "hopper", engine))
            found.append(
                {
                    "engine": engine,
                    "batches": batches,
                    "mean": ratio.mean,
                    "low": ratio.low,
                    "high": ratio.high,
                }
            )
    return found


def _steps(runs: list[dict[str, Any]], system: str, kind: str) -> list[float]:
    own = [run for run in runs if (run["system"], run["kind"]) == (system, kind)]
    return [measured(run["epochs"]) for run in sorted(own, key=lambda run: run["round"])]


def _scores(runs: list[dict[str, Any]], system: str, kind: str) -> list[float]:
    """Test accuracy of every round."""
    return [run["accuracy"] for run in runs if (run["system"], run["kind"]) == (system, kind)]


def show(console: Console, result: dict[str, Any], sides: list[tuple[str, str]]) -> None:
    """Print the table."""
    table = Table("system", "", "s a step", "test accuracy")
    for system, kind in sides:
        steps = _steps(result["runs"], system, kind)
        scores = _scores(result["runs"], system, kind)
        table.add_row(system, kind, f"{np.median(steps):.3f}", f"{np.mean(scores):.4f}")
    console.print(table)
    for ratio in result["ratios"]:
        spread = ""
        if ratio["low"] is not None:
            spread = f" (95 %: {ratio['low']:.2f} to {ratio['high']:.2f})"
        console.print(
            f"DistDGL with {ratio['batches']} batches takes {ratio['mean']:.2f} times as long as "
            f"{ratio['engine']}{spread}"
        )


if __name__ == "__main__":
    sys.exit(main())
