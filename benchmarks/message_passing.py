"""Message passing on the CPU: Hopper's kernels, DGL's, and torch's sparse products.

    python benchmarks/message_passing.py --out DIR

Every cell is an operation on one block, forwards or backwards, at one width. The block is one hop
of a sampled mini-batch: degrees are Poisson's around the fanout, sources are uniform. A round times
each side once, in turn, and a ratio compares the sides of the same rounds. Needs DGL.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final

import numba
import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from hopper import ops
from hopper.bench.machine import commit, machine, versions
from hopper.bench.results import format_result
from hopper.graph.block import Edges
from hopper.ops.csr import destinations, destinations_to_sources, edge_order
from hopper.paired_ratio import paired_ratio
from hopper.whole_files import write_text

Call = Callable[[], Any]

WIDTHS: Final = (16, 128, 600)
HEADS: Final = 4
MOST_BYTES: Final = 1 << 29
"""of the numbers that one operation gathers; a block has fewer destinations where rows are wide"""


def make_block(num_dst: int, fanout: int, seed: int) -> Edges:
    """Return a block with four sources a destination, the first of which are the destinations."""
    generator = np.random.default_rng(seed)
    indptr = np.zeros(num_dst + 1, np.int64)
    np.cumsum(generator.poisson(fanout, num_dst), out=indptr[1:])
    return Edges.from_arrays(indptr, generator.integers(0, 4 * num_dst, indptr[-1]), 4 * num_dst)


def with_backward(forward: Callable[[], Tensor], leaves: Sequence[Tensor]) -> Mapping[str, Call]:
    """Return the two halves of an operation, to be timed alone."""
    result = forward()
    upstream = torch.randn_like(result)
    return {
        "forward": forward,
        "backward": lambda: torch.autograd.grad(result, leaves, upstream, retain_graph=True),
    }


def make_sides(block: Edges, operation: str, width: int) -> Mapping[str, Mapping[str, Call]]:
    """Return the calls to time, by side and then by direction."""
    import dgl

    graph = dgl.create_block(
        ("csc", (block.indptr, block.indices, [])),
        num_src_nodes=block.num_src,
        num_dst_nodes=block.num_dst,
    )
    x = torch.randn(block.num_src, width, requires_grad=True)
    heads = x.view(block.num_src, HEADS, -1)
    y = torch.randn(block.num_dst, HEADS, width // HEADS, requires_grad=True)
    w = torch.rand(block.num_edges, requires_grad=True)
    by_head = torch.rand(block.num_edges, HEADS, requires_grad=True)
    if operation == "copy_sum":
        return {
            "hopper": with_backward(lambda: ops.copy_sum(block, x), [x]),
            "dgl": with_backward(lambda: dgl.ops.copy_u_sum(graph, x), [x]),
            "torch": torch_products(block, x.detach(), None),
        }
    if operation == "weighted_sum":
        return {
            "hopper": with_backward(lambda: ops.weighted_sum(block, x, w.detach()), [x]),
            "dgl": with_backward(
                lambda: dgl.ops.u_mul_e_sum(graph, x, w.detach().view(-1, 1)), [x]
            ),
            "torch": torch_products(block, x.detach(), w.detach()),
        }
    if operation == "multi_head_sum":
        edges = by_head.unsqueeze(-1)
        return {
            "hopper": with_backward(lambda: ops.weighted_sum(block, heads, by_head), [x, by_head]),
            "dgl": with_backward(lambda: dgl.ops.u_mul_e_sum(graph, heads, edges), [x, by_head]),
        }
    if operation == "edge_dot":
        return {
            "hopper": with_backward(lambda: ops.edge_dot(block, heads, y), [x, y]),
            "dgl": with_backward(lambda: dgl.ops.u_dot_v(graph, heads, y), [x, y]),
        }
    return {
        "hopper": with_backward(lambda: ops.edge_softmax(block, by_head), [by_head]),
        "dgl": with_backward(lambda: dgl.ops.edge_softmax(graph, by_head), [by_head]),
    }


def torch_products(block: Edges, x: Tensor, w: Tensor | None) -> Mapping[str, Call]:
    """Return products with sparse CSR matrices, which are made before the clock starts."""
    weights = torch.ones(block.num_edges) if w is None else w
    back = destinations_to_sources(block)
    ordered_weights = weights.index_select(0, edge_order(block))
    options = {"check_invariants": False}
    forward = torch.sparse_csr_tensor(
        block.indptr, block.indices, weights, (block.num_dst, block.num_src), **options
    )
    backward = torch.sparse_csr_tensor(
        back.indptr, back.indices, ordered_weights, (block.num_src, block.num_dst), **options
    )
    upstream = torch.randn(block.num_dst, x.shape[1])
    return {"forward": lambda: forward @ x, "backward": lambda: backward @ upstream}


def measure(sides: Mapping[str, Call], rounds: int) -> dict[str, Any]:
    """Return the seconds of every side, and how many times as long as Hopper the others take."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    names = list(sides)
    for turn in range(-1, rounds):
        for index in range(len(names)):
            name = names[(turn + index) % len(names)]
            start = time.perf_counter()
            sides[name]()
            if turn >= 0:
                seconds[name].append(time.perf_counter() - start)
    return {
        "seconds": seconds,
        "median_seconds": {name: median(values) for name, values in seconds.items()},
        "peer_time_over_hopper_time": {
            name: asdict(paired_ratio(seconds[name], seconds["hopper"]))
            for name in names
            if name != "hopper"
        },
    }


def measure_cells(options: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Measure every operation at every width, and print each at once."""
    cells = []
    operations = ["copy_sum", "weighted_sum", "multi_head_sum", "edge_dot", "edge_softmax"]
    for width in WIDTHS:
        most = MOST_BYTES // (4 * width * options.fanout)
        block = make_block(min(options.destinations, most), options.fanout, options.seed)
        destinations(block)
        for operation in operations:
            if operation == "edge_softmax" and width != WIDTHS[0]:
                continue
            sides = make_sides(block, operation, width)
            for direction in ("forward", "backward"):
                calls = {name: halves[direction] for name, halves in sides.items()}
                cell = {
                    "operation": operation,
                    "direction": direction,
                    "width": HEADS if operation == "edge_softmax" else width,
                    "destinations": block.num_dst,
                    "edges": block.num_edges,
                    **measure(calls, options.rounds),
                }
                cells.append(cell)
                show(console, cell)
    return cells


def show(console: Console, cell: Mapping[str, Any]) -> None:
    """Print a row: what was done, Hopper's time, and the others' as ratios."""
    table = Table.grid(padding=(0, 2))
    ratios = [
        f"{name} {ratio['mean']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
        for name, ratio in cell["peer_time_over_hopper_time"].items()
    ]
    milliseconds = f"{cell['median_seconds']['hopper'] * 1e3:.2f} ms"
    table.add_row(cell["operation"], cell["direction"], str(cell["width"]), milliseconds, *ratios)
    console.print(table)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and write ``result.json``. Return 0."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--destinations", type=int, default=50_000)
    parser.add_argument("--fanout", type=int, default=10)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=numba.config.NUMBA_NUM_THREADS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if options.rounds < 2:
        parser.error("an interval needs two rounds")
    os.environ.setdefault("DGLBACKEND", "pytorch")
    import dgl

    torch.manual_seed(options.seed)
    torch.set_num_threads(options.threads)
    numba.set_num_threads(options.threads)
    dgl.utils.set_num_threads(options.threads)
    result = {
        "schema": 1,
        "benchmark": "message_passing",
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "dtype": "float32",
        "heads": HEADS,
        **{name: getattr(options, name) for name in ("fanout", "rounds", "threads", "seed")},
        "cells": measure_cells(options, Console()),
    }
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "result.json", format_result(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
