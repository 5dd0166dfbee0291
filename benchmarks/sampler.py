"""Hopper's neighbour samplers against DGL's: uniform, by weight and with replacement.

usage: python -m benchmarks.sampler --graph DIR --out DIR [--batches 30]

All sides draw 3-hop neighbourhoods (fanout 10, 1,024 roots) of the same training roots on equal
threads, and make blocks. Edges get log-normal weights (sigma 1). ``unbiased`` makes the
probabilities of its edges too. The graph, a graph directory or a partitioned one, has one relation.
Needs DGL. A line has the seconds of a round's batches, or the edges of a batch.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numba
import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.rounds import Measured, Results, make_parser, positive, take_turns
from hopper.errors import RequestError
from hopper.graph.directory import GraphDirectory
from hopper.micrograph.route import permute
from hopper.micrograph.samplers import SAMPLERS
from hopper.partition import PartitionedGraph
from hopper.partition.description import DESCRIPTION_FILE
from hopper.partition.write_topology import add_up_weights

FANOUTS = (10, 10, 10)
BATCH_SIZE = 1024
WARM_UP = 3
HOPPER: dict[str, tuple[str, dict[str, bool]]] = {
    "uniform": ("node", {}),
    "weighted": ("weighted", {}),
    "weighted, unbiased": ("weighted", {"unbiased": True}),
    "weighted, with replacement": ("weighted", {"replace": True}),
    "with replacement": ("replacement", {}),
}
DGL: dict[str, dict[str, Any]] = {
    "DGL, uniform": {"fused": True},
    "DGL, uniform, to_block": {"fused": False},
    "DGL, by prob": {"prob": "weight"},
    "DGL, by prob, with replacement": {"prob": "weight", "replace": True},
    "DGL, with replacement": {"replace": True},
}
AGAINST = {
    "uniform": ["DGL, uniform", "DGL, uniform, to_block"],
    "weighted": ["uniform", "DGL, by prob"],
    "weighted, unbiased": ["uniform"],
    "weighted, with replacement": ["uniform", "DGL, by prob, with replacement"],
    "with replacement": ["uniform", "DGL, with replacement"],
}

Sample = Callable[[NDArray[np.int64], int], int]
"""draws the neighbourhoods of roots in an iteration; returns the number of edges"""


class Workload:
    """A graph with one relation, weights of its edges, and the batches that every side samples."""

    def __init__(self, options: argparse.Namespace) -> None:
        path, self.seed = options.graph, 0
        divided = (path / DESCRIPTION_FILE).is_file()
        graph = PartitionedGraph.open(path) if divided else GraphDirectory.open(path, "shapes")
        if len(graph.schema.relations) != 1:
            raise RequestError(f"{path}: expected a graph with one relation")
        (self.relation,) = graph.schema.relations
        self.target, self.topology = graph.schema.target_type(), graph.topology(self.relation)
        generator = np.random.default_rng(self.seed)
        noise = generator.normal(0.0, 1.0, self.topology.indices.size)
        self.weights = np.exp(noise).astype(np.float32)
        self.original_ids = global_ids = np.arange(graph.schema.node_types[self.target].count)
        if isinstance(graph, PartitionedGraph):
            self.original_ids = np.array(graph.original_ids(self.target))
            global_ids = np.array(graph.global_ids(self.target))
        train = np.array(graph.split("train"))
        if train.size < BATCH_SIZE:
            raise RequestError(f"{path}: fewer than {BATCH_SIZE} training nodes")
        self.batches = []
        for index in range(options.batches):
            epoch, batch = divmod(index, train.size // BATCH_SIZE)
            places = np.arange(batch * BATCH_SIZE, (batch + 1) * BATCH_SIZE)
            self.batches.append(global_ids[train[permute(self.seed, epoch, train.size, places)]])

    def make_side(self, name: str) -> Sample:
        """Make the sampler of a side."""
        return self._hopper(*HOPPER[name]) if name in HOPPER else self._dgl(DGL[name])

    def _hopper(self, kind: str, options: dict[str, bool]) -> Sample:
        topology = self.topology
        if kind == "weighted":
            largest = float(self.weights.max())
            sums = add_up_weights(self.weights, largest, np.asarray(topology.indptr))
            topology = dataclasses.replace(topology, cumulative_weights=sums)
        graph: Any = ({self.relation: topology}, {self.target: self.original_ids}, self.target)
        sampler: Any = SAMPLERS[kind](*graph, FANOUTS, self.seed, **options)  # type: ignore[arg-type]

        def sample(roots: NDArray[np.int64], iteration: int) -> int:
            blocks = sampler.sample(roots, 0, iteration).blocks()
            if options.get("unbiased"):
                for block in blocks:
                    block.inverse_probability(torch.float32)
            return sum(block.num_edges for block in blocks)

        return sample

    def _dgl(self, options: dict[str, Any]) -> Sample:
        import dgl

        # DGL needs writable tensors of one dtype and would keep maps alive, so make copies. With
        # int32 its fused sampler expands no hop but the first.
        arrays = (self.topology.indptr, self.topology.indices, ())
        csc = tuple(torch.from_numpy(np.array(array, np.int64)) for array in arrays)
        graph = dgl.graph(("csc", csc), num_nodes=self.original_ids.size)
        if "prob" in options:
            graph.edata["weight"] = torch.from_numpy(self.weights)
        graph = graph.formats("csc")
        sampler = dgl.dataloading.NeighborSampler(list(FANOUTS), **options)

        def sample(roots: NDArray[np.int64], _iteration: int) -> int:
            _, _, blocks = sampler.sample_blocks(graph, torch.from_numpy(roots))
            return sum(block.num_edges() for block in blocks)

        return sample


def measure(options: argparse.Namespace) -> tuple[Measured, dict[str, float]]:
    """Return the seconds of every side, batch by batch, and its mean edges of a batch."""
    import dgl

    for set_threads in (torch.set_num_threads, numba.set_num_threads, dgl.utils.set_num_threads):
        set_threads(options.threads)
    work = Workload(options)
    samples = {name: work.make_side(name) for name in (*HOPPER, *DGL)}
    edges: dict[str, list[int]] = {name: [] for name in samples}
    for index in range(WARM_UP):
        for sample in samples.values():
            sample(work.batches[index % len(work.batches)], index)

    def run(name: str, batch: int) -> None:
        edges[name].append(samples[name](work.batches[batch], batch))

    sides = {name: (lambda batch, name=name: run(name, batch)) for name in samples}
    measured = take_turns(sides, options.rounds, parts=len(work.batches), warm_up=0)
    return measured, {name: float(np.mean(counts)) for name, counts in edges.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--graph", type=Path, required=True, help="graph or partitioned directory")
    parser.add_argument("--batches", type=positive, default=30, help="of a round")
    parser.add_argument("--threads", type=positive, default=2, help="of every side")
    options = parser.parse_args(arguments)
    os.environ |= {"DGLBACKEND": "pytorch", "OMP_NUM_THREADS": str(options.threads),
                   "NUMBA_NUM_THREADS": str(options.threads),
                   # A side's idle threads must not spin on the cores that the next side uses.
                   "OMP_WAIT_POLICY": "PASSIVE"}  # fmt: skip

    # The environment has to be there before torch is loaded, so measure in another process.
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        measured, edges = pool.submit(measure, options).result()
    facts = [(name, "edges of a batch", count) for name, count in edges.items()]
    Results("sampler", options.out).add(options.graph.name, measured, AGAINST, facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
