"""Data locality of micrographs and subgraphs: R_micro and R_sub (HopGNN, section 4).

R_micro is the mean, over roots, of the share of a root's micrograph that is stored with the root.
R_sub is the same share for the subgraph of a mini-batch of random roots: the mean, over its roots,
of the share of the subgraph that is stored with that root. Roots are in no numerator and in every
denominator, as in the paper, so that with P servers R_sub tends to 1/P. Vertices count
once, whatever hops reach them, and all node types count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cache_server.draw import permuted
from hopper.errors import RequestError
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph
from hopper.partition.book import PartitionBook
from hopper.partition.partitioned_graph import PartitionedGraph
from hopper.partition.training import training_roots

DEFAULT_BATCH: Final = 1024


@dataclass(frozen=True)
class Locality:
    """Both measures and how they were taken."""

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
        """The "locality" entry of partition.json."""
        return {
            "fanouts": list(self.fanouts),
            "roots": self.roots,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "micrograph": round(self.micrograph, 6),
            "subgraph": round(self.subgraph, 6),
        }


def measure_locality(
    graph: PartitionedGraph,
    fanouts: Sequence[int] = (10, 10),
    roots: int = 2000,
    batch_size: int = DEFAULT_BATCH,
    seed: int = 0,
    sampler: type[NeighborSampler] = NeighborSampler,
) -> Locality:
    """Sample micrographs and mini-batches of training roots and count where their vertices live.

    Parameters
    ----------
    roots: how many roots to take, in the order of the first epoch's permutation; fewer where the
        graph has fewer. Without a training split, any node of the target type may be a root.
    batch_size: roots a mini-batch.
    seed: of the permutation and of the draws.
    sampler: what draws; for a :class:`~hopper.micrograph.layer_sampler.LayerSampler`, ``fanouts``
        are its sizes of layers.

    Raises
    ------
    RequestError: there is no root to take, or a number below 1.
    ConfigError: unusable fanouts.
    """
    if roots < 1 or batch_size < 1:
        raise RequestError(
            f"locality: expected at least 1 root and a batch of at least 1, given {roots} roots "
            f"and batches of {batch_size}"
        )
    schema = graph.schema
    drawing = sampler(
        {relation: graph.topology(relation) for relation in schema.relations},
        {node_type: graph.original_ids(node_type) for node_type in schema.node_types},
        schema.target_type(),
        fanouts,
        seed,
    )
    chosen = _roots(graph, roots, seed)
    batches = [chosen[first : first + batch_size] for first in range(0, chosen.size, batch_size)]
    micro = sub = 0.0
    for iteration, batch in enumerate(batches):
        homes = graph.book.home(drawing.target, batch)
        whole = drawing.sample(batch, 0, iteration)
        sub += float(_colocated_shares(whole, graph.book)[homes].sum())
        for root, home in zip(batch, homes, strict=True):
            # The same iteration as the batch, so these are its micrographs.
            one = drawing.sample(np.array([root]), 0, iteration)
            micro += float(_colocated_shares(one, graph.book)[home])
    return Locality(
        fanouts=tuple(fanouts),
        roots=int(chosen.size),
        batch_size=batch_size,
        seed=seed,
        micrograph=micro / chosen.size,
        subgraph=sub / chosen.size,
    )


def _roots(graph: PartitionedGraph, wanted: int, seed: int) -> NDArray[np.int64]:
    """[n] int64 global ids of the first roots in the order of epoch 0."""
    target = graph.schema.target_type()
    counts = training_roots(graph)
    ids = np.flatnonzero(counts) if counts.any() else np.arange(counts.size)
    if ids.size == 0:
        raise RequestError(f"{graph.path}: node type {target!r} has no node to take as a root")
    order = permuted(seed, 0, ids.size, np.arange(min(wanted, ids.size)))
    return graph.global_ids(target)[ids[order]]


def _colocated_shares(subgraph: Subgraph, book: PartitionBook) -> NDArray[np.float64]:
    """[servers] float64: non-root vertices on each server / all vertices."""
    counts = np.zeros(book.servers, np.int64)
    total = 0
    for node_type, ids in subgraph.nodes.items():
        others = ids[subgraph.num_roots :] if node_type == subgraph.target else ids
        counts += np.bincount(book.home(node_type, others), minlength=book.servers)
        total += ids.size
    return counts / total
