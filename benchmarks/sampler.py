"""Hopper's neighbour sampler against DGL's.

``python benchmarks/sampler.py --graph DIR --out DIR`` draws 3-hop neighbourhoods (fanout 10, 1,024
roots) of the same training roots with

- ``hopper``: ``NeighborSampler.sample`` and ``Subgraph.blocks``;
- ``dgl``: ``dgl.dataloading.NeighborSampler`` as it comes (fused sampling and compaction);
- ``dgl_to_block``: the same with ``fused=False`` (sampling, then ``to_block``).

All sides take turns batch by batch, in rotated order, on equal threads; ratios are taken batch by
batch against the faster of DGL's two ways. Each side's peak memory is measured in a process of its
own. The graph may be a graph directory or a partitioned one, with a single relation.
Writes ``DIR/sampler.json`` and prints a table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from cache_server.draw import permute
from hopper.bench.machine import commit, machine, versions
from hopper.bench.results import format_result
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.graph.topology import Topology
from hopper.micrograph.sample import NeighborSampler
from hopper.paired_ratio import paired_ratio
from hopper.partition import PartitionedGraph
from hopper.partition.file_names import DESCRIPTION_FILE

SIDES = ("hopper", "dgl", "dgl_to_block")
FANOUTS = (10, 10, 10)
BATCH_SIZE = 1024
WARM_UP = 3
GOAL = 2.0
RESULT_FILE = "sampler.json"

Sizes = tuple[int, int]
"""input nodes and edges of a batch's blocks"""
Sample = Callable[[NDArray[np.int64], int], Sizes]


class Workload:
    """A graph with one relation, and the batches of roots that every side samples."""

    def __init__(self, path: Path, batches: int, seed: int) -> None:
        divided = (path / DESCRIPTION_FILE).is_file()
        graph = PartitionedGraph.open(path) if divided else GraphDirectory.open(path, "shapes")
        if len(graph.schema.relations) != 1:
            raise RequestError(f"{path}: expected a graph with one relation")
        (self.relation,) = graph.schema.relations
        self.name, self.target = graph.schema.name, graph.schema.target_type()
        self.topology: Topology = graph.topology(self.relation)
        self.seed = seed
        count = graph.schema.node_types[self.target].count
        self.original_ids = np.arange(count)
        global_ids = self.original_ids
        if isinstance(graph, PartitionedGraph):
            self.original_ids = np.array(graph.original_ids(self.target))
            global_ids = np.array(graph.global_ids(self.target))
        train = np.array(graph.split("train"))
        batch_count = train.size // BATCH_SIZE
        if batch_count == 0:
            raise RequestError(f"{path}: fewer than {BATCH_SIZE} training nodes")
        self.batches = []
        for index in range(batches):
            epoch, batch = divmod(index, batch_count)
            places = np.arange(batch * BATCH_SIZE, (batch + 1) * BATCH_SIZE)
            roots = train[permute(seed, epoch, train.size, places)]
            self.batches.append(global_ids[roots])


def hopper_side(work: Workload) -> Sample:
    """Make Hopper's sampler, which makes blocks too."""
    sampler = NeighborSampler(
        {work.relation: work.topology},
        {work.target: work.original_ids},
        work.target,
        FANOUTS,
        work.seed,
    )

    def sample(roots: NDArray[np.int64], iteration: int) -> Sizes:
        blocks = sampler.sample(roots, 0, iteration).blocks()
        return blocks[0].num_src, sum(block.num_edges for block in blocks)

    return sample


def dgl_side(work: Workload, fused: bool) -> Sample:
    """Make DGL's sampler, with the graph in the format that it samples from."""
    import dgl
    import torch

    # DGL needs writable tensors and would keep maps alive, so make copies.
    indptr = torch.from_numpy(np.array(work.topology.indptr))
    indices = torch.from_numpy(np.array(work.topology.indices))
    graph = dgl.graph(
        ("csc", (indptr, indices, torch.empty(0, dtype=torch.int64))),
        num_nodes=work.original_ids.size,
    )
    graph = graph.formats("csc")
    sampler = dgl.dataloading.NeighborSampler(list(FANOUTS), fused=fused)

    def sample(roots: NDArray[np.int64], _iteration: int) -> Sizes:
        inputs, _, blocks = sampler.sample_blocks(graph, torch.from_numpy(roots))
        return inputs.numel(), sum(block.num_edges() for block in blocks)

    return sample


def make_side(name: str, work: Workload) -> Sample:
    """Return the sampler of a side."""
    return hopper_side(work) if name == "hopper" else dgl_side(work, fused=name == "dgl")


def use_threads(threads: int, with_dgl: bool) -> None:
    """Set an equal number of threads for numba, torch and, if it takes part, DGL."""
    import numba
    import torch

    numba.set_num_threads(threads)
    torch.set_num_threads(threads)
    if with_dgl:
        import dgl

        dgl.utils.set_num_threads(threads)


def measure_times(work: Workload, rounds: int, threads: int) -> dict[str, Any]:
    """Return the seconds per batch of every side, round after round, and mean sizes of a batch."""
    use_threads(threads, with_dgl=True)
    sides = {name: make_side(name, work) for name in SIDES}
    seconds: dict[str, list[float]] = {name: [] for name in SIDES}
    sizes: dict[str, list[Sizes]] = {name: [] for name in SIDES}
    for index in range(WARM_UP):
        for sample in sides.values():
            sample(work.batches[index % len(work.batches)], index)
    turn = 0
    for _ in range(rounds):
        for iteration, roots in enumerate(work.batches):
            turn += 1
            for place in range(len(SIDES)):
                name = SIDES[(turn + place) % len(SIDES)]
                start = time.perf_counter()
                subgraph = sides[name](roots, iteration)
                seconds[name].append(time.perf_counter() - start)
                sizes[name].append(subgraph)
    means = {name: np.mean(values, axis=0).tolist() for name, values in sizes.items()}
    return {"seconds": seconds, "mean_input_nodes_and_edges": means}


def measure_memory(name: str, work: Workload, threads: int) -> dict[str, float]:
    """Return the resident MiB before a sampler is made, and at the peak of sampling every batch
    once.

    Memory maps of the topology count as far as they were read.
    """
    use_threads(threads, with_dgl=name != "hopper")
    mib_before = resident_mib("VmRSS")
    sample = make_side(name, work)
    for iteration, roots in enumerate(work.batches):
        sample(roots, iteration)
    return {"before_mib": mib_before, "peak_mib": resident_mib("VmHWM")}


def resident_mib(field: str) -> float:
    """Read a line of /proc/self/status. getrusage would count the parent's memory before exec."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return round(int(line.split()[1]) / 1024, 1)
    raise RuntimeError(f"/proc/self/status has no {field}")


def in_process(options: argparse.Namespace, role: str) -> Any:
    """Run a role of this script in a process of its own."""
    words = [sys.executable, str(Path(__file__).resolve()), "--role", role]
    for name in ("graph", "batches", "threads", "rounds", "seed"):
        words += [f"--{name}", str(getattr(options, name))]
    environment = os.environ | {
        "DGLBACKEND": "pytorch",
        "OMP_NUM_THREADS": str(options.threads),
        "NUMBA_NUM_THREADS": str(options.threads),
        # A side's idle threads must not spin on the cores that the next side uses.
        "OMP_WAIT_POLICY": "PASSIVE",
    }
    done = subprocess.run(words, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def run(options: argparse.Namespace) -> int:
    """Measure, write and print. Return 0."""
    times = in_process(options, "times")
    memory = {name: in_process(options, f"memory-{name}") for name in SIDES}
    seconds = times["seconds"]
    medians = {name: float(np.median(values)) for name, values in seconds.items()}
    peer = min(SIDES[1:], key=lambda name: medians[name])
    ratio = paired_ratio(seconds[peer], seconds["hopper"])
    result = {
        "schema": 1,
        "benchmark": "sampler",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "graph": Path(options.graph).name,
        "fanouts": FANOUTS,
        "batch_size": BATCH_SIZE,
        "batches": options.batches,
        "rounds": options.rounds,
        "threads": options.threads,
        "seed": options.seed,
        "seconds": seconds,
        "median_seconds": medians,
        "mean_input_nodes_and_edges": times["mean_input_nodes_and_edges"],
        "memory": memory,
        "peer": peer,
        "peer_time_over_hopper_time": asdict(ratio),
        "goal": GOAL,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / RESULT_FILE
    unfinished = path.with_name(path.name + ".unfinished")
    unfinished.write_text(format_result(result))
    unfinished.replace(path)
    show(Console(), result)
    return 0


def show(console: Console, result: dict[str, Any]) -> None:
    """Print the table, and whether the goal is met."""
    table = Table(
        title=f"{result['batch_size']:,} roots, fanouts {result['fanouts']}, "
        f"{result['threads']} threads, {result['rounds']} rounds of {result['batches']} batches"
    )
    table.add_column("sampler")
    for heading in ("median, ms", "p95, ms", "input nodes", "edges", "peak MiB", "MiB before"):
        table.add_column(heading, justify="right")
    for name, values in result["seconds"].items():
        nodes, edges = result["mean_input_nodes_and_edges"][name]
        memory = result["memory"][name]
        table.add_row(
            name,
            f"{1e3 * result['median_seconds'][name]:.1f}",
            f"{1e3 * np.percentile(values, 95):.1f}",
            f"{nodes:,.0f}",
            f"{edges:,.0f}",
            f"{memory['peak_mib']:,.0f}",
            f"{memory['before_mib']:,.0f}",
        )
    console.print(table)
    ratio = result["peer_time_over_hopper_time"]
    low = ratio["low"]
    interval = "no interval" if low is None else f"95 %: {low:.2f} to {ratio['high']:.2f}"
    verdict = "met" if low is not None and low >= result["goal"] else "missed"
    console.print(
        f"{result['peer']} takes {ratio['mean']:.2f} times hopper's time ({interval}); "
        f"goal of {result['goal']:g} times: {verdict}"
    )


def main(argv: list[str] | None = None) -> int:
    """Run the command line. The roles other than ``run`` are this script's own child processes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", type=Path, required=True, help="graph or partitioned directory")
    parser.add_argument("--out", type=Path, help=f"folder for {RESULT_FILE}")
    parser.add_argument("--batches", type=int, default=30, help="batches a round (default 30)")
    parser.add_argument("--rounds", type=int, default=5, help="default 5")
    parser.add_argument("--threads", type=int, default=2, help="of every side (default 2)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--role", default="run", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    for name in ("batches", "rounds", "threads"):
        if getattr(options, name) < 1:
            parser.error(f"--{name}: expected at least 1")
    if options.role == "run":
        if options.out is None:
            parser.error("--out is required")
        return run(options)
    work = Workload(options.graph, options.batches, options.seed)
    if options.role == "times":
        print(json.dumps(measure_times(work, options.rounds, options.threads)))
    else:
        side = options.role.removeprefix("memory-")
        print(json.dumps(measure_memory(side, work, options.threads)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
