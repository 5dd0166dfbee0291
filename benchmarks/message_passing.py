"""Message passing on the CPU: Hopper's kernels, DGL's, and torch's sparse products.

usage: python -m benchmarks.message_passing --out DIR

A cell is an operation on one block, forwards or backwards, at one width. The block is one hop of a
sampled mini-batch: degrees are Poisson's around the fanout, sources are uniform. Needs DGL. A line
has the seconds of a call; ``hopper`` over ``dgl`` 2.0 means that Hopper is 2.0x faster.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numba
import numpy as np
import torch
from torch import Tensor

from benchmarks.rounds import Results, make_parser, positive, take_turns, timed
from hopper import ops
from hopper.graph.block import Edges
from hopper.ops.csr import destinations, destinations_to_sources, edge_order

Call = Callable[[], Any]

WIDTHS: Final = (16, 128, 600)
HEADS: Final = 4
FANOUT: Final = 10
OPERATIONS: Final = ("copy_sum", "weighted_sum", "multi_head_sum", "edge_dot", "edge_softmax")
MOST_BYTES: Final = 1 << 29
"""of the numbers that one operation gathers; a block has fewer destinations where rows are wide"""


def make_block(num_dst: int) -> Edges:
    """Return a block with four sources a destination, the first of which are the destinations."""
    generator = np.random.default_rng(0)
    indptr = np.zeros(num_dst + 1, np.int64)
    np.cumsum(generator.poisson(FANOUT, num_dst), out=indptr[1:])
    return Edges.from_arrays(indptr, generator.integers(0, 4 * num_dst, indptr[-1]), 4 * num_dst)


def both_ways(forward: Callable[[], Tensor], *leaves: Tensor) -> Mapping[str, Call]:
    """Return the two halves of an operation, to be timed alone."""
    result = forward()
    upstream = torch.randn_like(result)
    backward = lambda: torch.autograd.grad(result, leaves, upstream, retain_graph=True)  # noqa: E731
    return {"forward": forward, "backward": backward}


def make_sides(block: Edges, operation: str, width: int) -> Mapping[str, Mapping[str, Call]]:
    """Return the calls to time, by side and then by direction."""
    from dgl import create_block
    from dgl import ops as dgl_ops

    csc = ("csc", (block.indptr, block.indices, []))
    graph = create_block(csc, num_src_nodes=block.num_src, num_dst_nodes=block.num_dst)
    x = torch.randn(block.num_src, width, requires_grad=True)
    heads = x.view(block.num_src, HEADS, -1)
    y = torch.randn(block.num_dst, HEADS, width // HEADS, requires_grad=True)
    w = torch.rand(block.num_edges)
    by_head = torch.rand(block.num_edges, HEADS, requires_grad=True)
    edges = by_head.unsqueeze(-1)
    calls: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor], list[Tensor]]] = {
        "copy_sum": (
            lambda: ops.copy_sum(block, x), lambda: dgl_ops.copy_u_sum(graph, x), [x]),
        "weighted_sum": (
            lambda: ops.weighted_sum(block, x, w),
            lambda: dgl_ops.u_mul_e_sum(graph, x, w.view(-1, 1)), [x]),
        "multi_head_sum": (
            lambda: ops.weighted_sum(block, heads, by_head),
            lambda: dgl_ops.u_mul_e_sum(graph, heads, edges), [x, by_head]),
        "edge_dot": (
            lambda: ops.edge_dot(block, heads, y),
            lambda: dgl_ops.u_dot_v(graph, heads, y), [x, y]),
        "edge_softmax": (
            lambda: ops.edge_softmax(block, by_head),
            lambda: dgl_ops.edge_softmax(graph, by_head), [by_head]),
    }  # fmt: skip
    ours, theirs, leaves = calls[operation]
    sides = {"hopper": both_ways(ours, *leaves), "dgl": both_ways(theirs, *leaves)}
    if operation in ("copy_sum", "weighted_sum"):
        weights = torch.ones(block.num_edges) if operation == "copy_sum" else w
        sides["torch"] = torch_products(block, x.detach(), weights)
    return sides


def torch_products(block: Edges, x: Tensor, weights: Tensor) -> Mapping[str, Call]:
    """Return products with sparse CSR matrices, which are made before the clock starts."""
    back = destinations_to_sources(block)
    ordered_weights = weights.index_select(0, edge_order(block))
    shape = (block.num_dst, block.num_src)
    options = {"check_invariants": False}
    forward = torch.sparse_csr_tensor(block.indptr, block.indices, weights, shape, **options)
    backward = torch.sparse_csr_tensor(
        back.indptr, back.indices, ordered_weights, shape[::-1], **options
    )
    upstream = torch.randn(block.num_dst, x.shape[1])
    return {"forward": lambda: forward @ x, "backward": lambda: backward @ upstream}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__, rounds=15)
    parser.add_argument("--destinations", type=positive, default=50_000)
    parser.add_argument("--threads", type=positive, default=numba.config.NUMBA_NUM_THREADS)
    options = parser.parse_args(arguments)
    os.environ.setdefault("DGLBACKEND", "pytorch")
    import dgl

    torch.manual_seed(0)
    for set_threads in (torch.set_num_threads, numba.set_num_threads, dgl.utils.set_num_threads):
        set_threads(options.threads)
    results = Results("message-passing", options.out)
    for width in WIDTHS:
        most = MOST_BYTES // (4 * width * FANOUT)
        block = make_block(min(options.destinations, most))
        destinations(block)
        for operation in OPERATIONS:
            if operation == "edge_softmax" and width != WIDTHS[0]:
                continue
            sides = make_sides(block, operation, width)
            for direction in ("forward", "backward"):
                calls = {
                    name: timed(lambda _, call=halves[direction]: call())
                    for name, halves in sides.items()
                }
                size = HEADS if operation == "edge_softmax" else width
                peers = {"hopper": [name for name in sides if name != "hopper"]}
                results.add(
                    f"{operation} {direction}, width {size}",
                    take_turns(calls, options.rounds),
                    peers,
                    [("all", "edges", block.num_edges)],
                )
    return 0


if __name__ == "__main__":
    sys.exit(main())
