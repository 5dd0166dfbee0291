"""Data locality of micrographs and subgraphs: R_micro and R_sub (HopGNN, section 4).

R_micro is the mean, over roots, of the share of a root's micrograph that is stored with the root.
R_sub is the mean, over the roots of a random mini-batch, of the share of the batch's subgraph that
is stored with the root. As in the paper, roots count in denominators but not in numerators, so
R_sub tends to 1/P on P servers. A vertex counts once, however many hops reach it, and all node
types count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import RequestError
from hopper.graph.topology import Ids
from hopper.micrograph.route import permute
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph
from hopper.partition.balance import training_roots
from hopper.partition.partitioned_graph import PartitionedGraph
from hopper.partition.placement import PartitionBook

DEFAULT_BATCH: Final = 1024


@dataclass(frozen=True)
class Locality:
    """R_micro and R_sub, and the parameters they were measured with."""

    fanouts: tuple[int, ...]
    roots: int
    """number of roots sampled"""
    batch_size: int
    """roots a mini-batch, for R_sub"""
    seed: int
    micrograph: float
    """R_micro in [0, 1]"""
    subgraph: float
    """R_sub in [0, 1]"""

    def as_json(self) -> dict[str, Any]:
        """Return the "locality" entry of partition.json."""
        shares = {name: round(getattr(self, name), 6) for name in ("micrograph", "subgraph")}
        return asdict(self) | {"fanouts": list(self.fanouts)} | shares


def measure_locality(
    graph: PartitionedGraph,
    fanouts: Sequence[int] = (10, 10),
    roots: int = 2000,
    batch_size: int = DEFAULT_BATCH,
    seed: int = 0,
    sampler: type[NeighborSampler] = NeighborSampler,
) -> Locality:
    """Sample micrographs and mini-batches of training roots, and measure R_micro and R_sub.

    Parameters
    ----------
    fanouts: one per hop, first hop first; layer sizes for a
        :class:`~hopper.micrograph.layer_sampler.LayerSampler`.
    roots: how many roots to sample at most, the first ones of the first epoch's order. Without a
        training split, any node of the target type may be a root.
    batch_size: roots a mini-batch.
    seed: seed of the order and of the draws.
    sampler: class of the sampler.

    Raises
    ------
    RequestError: there are no roots, or ``roots`` or ``batch_size`` is below 1.
    ConfigError: the fanouts are unusable.
    """
    if roots < 1 or batch_size < 1:
        raise RequestError(
            f"locality: expected at least 1 root and a batch of at least 1, given {roots} roots "
            f"and batches of {batch_size}"
        )
    schema = graph.schema
    drawer = sampler(
        {relation: graph.topology(relation) for relation in schema.relations},
        {node_type: graph.original_ids(node_type) for node_type in schema.node_types},
        schema.target_type(),
        fanouts,
        seed,
    )
    sampled_roots = _first_roots(graph, roots, seed)
    count = sampled_roots.size
    batches = [sampled_roots[first : first + batch_size] for first in range(0, count, batch_size)]
    micro = sub = 0.0
    for iteration, batch in enumerate(batches):
        homes = graph.book.home(drawer.target, batch)
        subgraph = drawer.sample(batch, 0, iteration)
        sub += float(_colocated_shares(subgraph, graph.book)[homes].sum())
        for root, home in zip(batch, homes, strict=True):
            # In the batch's iteration these are the micrographs of which its subgraph is the union.
            micrograph = drawer.sample(np.array([root]), 0, iteration)
            micro += float(_colocated_shares(micrograph, graph.book)[home])
    return Locality(
        fanouts=tuple(fanouts),
        roots=int(count),
        batch_size=batch_size,
        seed=seed,
        micrograph=micro / count,
        subgraph=sub / count,
    )


def _first_roots(graph: PartitionedGraph, most: int, seed: int) -> Ids:
    """Return [n] int64 global ids of the first ``most`` roots in the order of epoch 0."""
    target = graph.schema.target_type()
    counts = training_roots(graph)
    ids = np.flatnonzero(counts) if counts.any() else np.arange(counts.size)
    if ids.size == 0:
        raise RequestError(f"{graph.path}: node type {target!r} has no node to take as a root")
    order = permute(seed, 0, ids.size, np.arange(min(most, ids.size)))
    return graph.global_ids(target)[ids[order]]


def _colocated_shares(subgraph: Subgraph, book: PartitionBook) -> NDArray[np.float64]:
    """Return [servers] float64: non-root vertices on each server over all vertices."""
    counts = np.zeros(book.servers, np.int64)
    total = 0
    for node_type, ids in subgraph.nodes.items():
        others = ids[subgraph.num_roots :] if node_type == subgraph.target else ids
        counts += np.bincount(book.home(node_type, others), minlength=book.servers)
        total += ids.size
    return counts / total
