"""Draws by weight and with replacement: their time beside uniform draws, and DGL's.

usage: python benchmarks/weighted_draws.py --graph DIR --out DIR [--rounds 5] [--batches 20]

3-hop neighbourhoods (fanout 10, 1,024 roots) of the same roots on a graph with one relation, whose
edges get weights that are log-normal (sigma 1). All sides take turns batch by batch, in rotated
order, on equal threads; a ratio is of totals of a round. ``weighted, unbiased`` makes the
probabilities of its edges too. DGL draws uniformly, by ``prob`` and with ``replace=True``.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.sampler import BATCH_SIZE, FANOUTS, WARM_UP, Workload, use_threads
from cache_server.alias_table import write_tables
from hopper.bench.machine import commit, machine, tell_machine, versions
from hopper.bench.results import format_result
from hopper.micrograph.samplers import SAMPLERS
from hopper.paired_ratio import paired_ratio
from hopper.palette import hex_of
from hopper.partition.weight_sums import add_up, to_units
from hopper.whole_files import write_text

SIGMA = 1.0
GOAL = 1.5
UNIFORM, DGL = "uniform", "DGL, uniform"
OURS: dict[str, tuple[str, dict[str, bool]]] = {
    UNIFORM: ("node", {}),
    "weighted": ("weighted", {}),
    "weighted, unbiased": ("weighted", {"unbiased": True}),
    "weighted, with replacement": ("weighted", {"replace": True}),
    "with replacement": ("replacement", {}),
}
THEIRS: dict[str, dict[str, Any]] = {
    DGL: {},
    "DGL, by prob": {"prob": "weight"},
    "DGL, by prob, with replacement": {"prob": "weight", "replace": True},
    "DGL, with replacement": {"replace": True},
}

Sample = Callable[[NDArray[np.int64], int], int]
"""draws the neighbourhoods of roots in an iteration; returns the number of edges"""


def make_weights(work: Workload, seed: int) -> NDArray[np.float32]:
    """Return [edges] float32, in the order of the neighbour lists."""
    generator = np.random.default_rng(seed)
    noise = generator.normal(0.0, SIGMA, work.topology.indices.size)
    return np.exp(noise).astype(np.float32)


def our_side(work: Workload, weights: NDArray[np.float32], name: str) -> Sample:
    """Make a sampler of Hopper's."""
    sampler_class, options = OURS[name]
    units = to_units(weights, float(weights.max()))
    indptr = np.asarray(work.topology.indptr)
    add_up(units, indptr, 0, indptr.size - 1, units)
    table = np.empty(units.size, np.uint32)
    write_tables(units, indptr, 0, indptr.size - 1, table)
    topology = dataclasses.replace(work.topology, weight_sums=units, alias_table=table)
    arguments: Any = ({work.relation: topology}, {work.target: work.original_ids}, work.target)
    sampler = SAMPLERS[sampler_class](*arguments, FANOUTS, work.seed, **options)  # type: ignore[arg-type]

    def sample(roots: NDArray[np.int64], iteration: int) -> int:
        blocks = sampler.sample(roots, 0, iteration).blocks()
        if options.get("unbiased"):
            for block in blocks:
                block.inverse_probability(torch.float32)
        return sum(block.num_edges for block in blocks)

    return sample


def dgl_side(work: Workload, weights: NDArray[np.float32], name: str) -> Sample:
    """Make a sampler of DGL's, without its fused function if it has none."""
    import dgl

    topology = work.topology
    arrays = [torch.from_numpy(np.array(array)) for array in (topology.indptr, topology.indices)]
    no_ids = torch.empty(0, dtype=torch.int64)
    graph = dgl.graph(("csc", (*arrays, no_ids)), num_nodes=work.original_ids.size)
    graph.edata["weight"] = torch.from_numpy(weights)
    graph = graph.formats("csc")
    sampler = dgl.dataloading.NeighborSampler(list(FANOUTS), **THEIRS[name])

    def sample(roots: NDArray[np.int64], iteration: int) -> int:
        _, _, blocks = sampler.sample_blocks(graph, torch.from_numpy(roots))
        return sum(block.num_edges() for block in blocks)

    return sample


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Return the seconds of a batch by side and round."""
    use_threads(options.threads, with_dgl=True)
    work = Workload(options.graph, options.batches, options.seed)
    weights = make_weights(work, options.seed)
    sides = {name: our_side(work, weights, name) for name in OURS}
    sides |= {name: dgl_side(work, weights, name) for name in THEIRS}
    for index in range(WARM_UP):
        for sample in sides.values():
            sample(work.batches[index % len(work.batches)], index)
    names, turn = list(sides), 0
    seconds: dict[str, list[float]] = {name: [] for name in names}
    edges = dict.fromkeys(names, 0)
    for _ in range(options.rounds):
        seconds_by_name = dict.fromkeys(names, 0.0)
        for iteration, roots in enumerate(work.batches):
            turn += 1
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                start = time.perf_counter()
                edges[name] += sides[name](roots, iteration)
                seconds_by_name[name] += time.perf_counter() - start
        for name in names:
            seconds[name].append(seconds_by_name[name] / len(work.batches))
    batches = options.rounds * len(work.batches)
    over = {}
    for name in names:
        base = DGL if name in THEIRS else UNIFORM
        over[name] = dataclasses.asdict(paired_ratio(seconds[name], seconds[base]))
    return {
        "schema": 1,
        "benchmark": "weighted_draws",
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "graph": work.name,
        "edges_of_graph": int(work.topology.indices.size),
        "mean_in_degree": float(work.topology.indices.size / work.original_ids.size),
        "weights": f"log-normal, sigma {SIGMA:g}",
        "fanouts": FANOUTS,
        "batch_size": BATCH_SIZE,
        "batches": options.batches,
        "rounds": options.rounds,
        "threads": options.threads,
        "seconds_of_a_batch": seconds,
        "edges_of_a_batch": {name: count // batches for name, count in edges.items()},
        "over_own_uniform": over,
        "goal": GOAL,
    }


def page(result: dict[str, Any]) -> str:
    """Write a page of the result, in Markdown."""
    lines = [
        "# Draws by weight and with replacement",
        "",
        "`python benchmarks/weighted_draws.py --graph DIR --out DIR`",
        "",
        f"- {result['date']}, commit `{result['commit'][:12]}`; {tell_machine(result['machine'])}",
        f"- {result['graph']}: {result['edges_of_graph']:,} edges, mean in-degree "
        f"{result['mean_in_degree']:.1f}; weights {result['weights']}",
        f"- {result['batch_size']:,} roots, fanouts {', '.join(map(str, result['fanouts']))}; "
        f"{result['rounds']} rounds of {result['batches']} batches, {result['threads']} threads",
        "",
        "![Seconds of a batch](picture.webp)",
        "",
        "| sampler | ms of a batch | edges of a batch | over the same system's uniform draws |",
        "|---|---:|---:|---:|",
    ]
    for name, seconds in result["seconds_of_a_batch"].items():
        ratio, edges = result["over_own_uniform"][name], result["edges_of_a_batch"][name]
        ratio_cell = f"{ratio['mean']:.2f}"
        if ratio["low"] is not None and name not in (UNIFORM, DGL):
            ratio_cell += f" ({ratio['low']:.2f} to {ratio['high']:.2f})"
        lines.append(
            f"| {name} | {1e3 * float(np.median(seconds)):.1f} | {edges:,} | {ratio_cell} |"
        )
    return "\n".join([*lines, ""])


def draw(result: dict[str, Any], file: Path) -> None:
    """Draw medians as bars."""
    names = list(result["seconds_of_a_batch"])[::-1]
    medians = [1e3 * float(np.median(result["seconds_of_a_batch"][name])) for name in names]
    figure = Figure((7, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    colors = [hex_of("grey") if name in THEIRS else hex_of("blue") for name in names]
    axes.barh(names, medians, color=colors)
    axes.set_xlabel("ms of a batch (median of rounds)")
    figure.savefig(file, dpi=110)


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", type=Path, required=True, help="graph or partitioned directory")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--batches", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    result = measure(options)
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "result.json", format_result(result))
    write_text(options.out / "README.md", page(result))
    draw(result, options.out / "picture.webp")
    Console().print(page(result), markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
