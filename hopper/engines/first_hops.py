"""First layers of mini-batches, told to the ranks that compute parts of them.

What engines share that divide the first layer: by columns of its input rows (``p3``) or by where
these are stored (``naive``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.array_exchange import exchange_arrays
from hopper.cluster import Cluster
from hopper.engines.engine import Plan, TrainState
from hopper.engines.request import Request
from hopper.errors import RequestError
from hopper.graph.block import Block
from hopper.micrograph.route import GlobalBatch
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import HopEdges, Subgraph
from hopper.partials import split_layer
from hopper.partition.layouts import Columns

_NONE: Final = np.empty(0, np.int32)


@dataclass(frozen=True)
class FirstHopsPlan(Plan):
    """A rank's part of an iteration.

    Attributes
    ----------
    subgraph: of its own mini-batch.
    first_hops: by rank, the subgraph of the first layer of the mini-batch of each rank that told
        this one, itself included.
    """

    subgraph: Subgraph
    first_hops: Mapping[int, Subgraph]

    @property
    def num_edges(self) -> int:
        """See :class:`Plan`."""
        others = sum(each.num_edges for each in self.first_hops.values())
        return self.subgraph.num_edges + others


def check_first_layer(request: Request, engine: str) -> None:
    """Refuse what has no first layer that can be divided.

    Raises
    ------
    RequestError: names the key, what was expected and what was given.
    """
    config = request.config
    # It knows the engines.
    from hopper.engines.assemble import make_model

    if config.model.typed:
        raise RequestError(
            f"train.engine: {engine} divides the first layer of models of one node type; expected "
            f"a model that reads one relation, given {config.model.name!r}"
        )
    if request.reads.learned:
        raise RequestError(
            f"learnable.types: {engine} divides the first layer over features, which do not "
            f"change; expected none, given {request.reads.learned}"
        )
    if config.cache.policy != "none":
        raise RequestError(
            f"cache.policy: under {engine} no rows travel that a cache could keep; expected "
            f'"none", given "{config.cache.policy}"'
        )
    if config.train.micro_batch:
        raise RequestError(
            f"train.micro_batch: {engine} trains a mini-batch in one pass; expected 0, given "
            f"{config.train.micro_batch}"
        )
    split_layer(make_model(request), Columns(0, request.reads.widths[request.reads.target]), engine)


def draw_first_hops(
    state: TrainState, channel: Cluster, batch: GlobalBatch, partners: Sequence[int]
) -> tuple[Subgraph, dict[int, Subgraph]]:
    """Draw this rank's own mini-batch, and tell others what its first layer reads; every rank has
    to call it.

    Parameters
    ----------
    channel: what others are told over.
    partners: whom this rank tells, who tell it in turn, itself among them.

    Returns
    -------
    The mini-batch, and by partner, in order, what the first layer of its mini-batch reads.
    """
    sampler, rank = state.trainer.sampler, state.cluster.rank
    with state.log.stage("sample") as fields:
        roots = batch.of_model(rank)
        fields["roots"] = int(roots.size)
        subgraph = state.trainer.sample_pass(roots, batch.epoch, batch.iteration)
        return subgraph, _exchange(channel, sampler, subgraph, partners, batch)


def first_block(hop: Subgraph, own: Block | None, edge_dim: int, device: torch.device) -> Block:
    """The block of a mini-batch's first layer.

    Parameters
    ----------
    hop: that its rank has told. own: where this rank trains the mini-batch, its block, which has
        features of edges; elsewhere these are zeros, since what they add is added there.
    edge_dim: width of features of edges; 0 = none are read.
    """
    (block,) = hop.blocks(device)
    if edge_dim and own is not None:
        block.edge_features = own.edge_features
    elif edge_dim:
        block.edge_features = torch.zeros(1, 1, device=device).expand(block.num_edges, edge_dim)
    return block


def _exchange(
    cluster: Cluster,
    sampler: NeighborSampler,
    subgraph: Subgraph,
    partners: Sequence[int],
    batch: GlobalBatch,
) -> dict[int, Subgraph]:
    """By partner, what the first layer of its mini-batch reads."""
    told = _tell(sampler, subgraph)
    others = [rank for rank in partners if rank != cluster.rank]
    groups = [
        [words if rank in others else _NONE for rank in range(cluster.world)] for words in told
    ]
    where = f"telling what first layers read, {batch.where}"
    came = exchange_arrays(cluster, groups, "topology", where)
    words = {rank: [each[rank] for each in came] for rank in others} | {cluster.rank: told}
    moment, key = (batch.epoch, batch.iteration), subgraph.iteration_key
    return {rank: _first_hop(sampler, moment, key, *words[rank]) for rank in partners}


def _tell(sampler: NeighborSampler, subgraph: Subgraph) -> list[NDArray[np.int32]]:
    """What the first layer of a mini-batch reads: versions of its nodes, destinations first, the
    number of edges of each destination, the places of their sources among the nodes, where their
    probabilities follow from them, their positions, and in-degrees that other ranks do not have."""
    ((relation, edges),) = subgraph.hops[-1].items()
    nodes, times = subgraph.nodes[subgraph.target], subgraph.times.get(subgraph.target)
    versions = sampler.versions_at(subgraph.target, nodes, times).astype(sampler.version_dtype)
    words = [versions.view(np.int32), np.diff(edges.indptr), edges.indices]
    words.append(_NONE if subgraph.inclusions[-1] is None else edges.positions)
    words.append(subgraph.in_degrees.get(relation, _NONE))
    return [each.astype(np.int32, copy=False) for each in words]


def _first_hop(
    sampler: NeighborSampler,
    moment: tuple[int, int],
    iteration_key: int,
    words: NDArray[np.int32],
    degrees: NDArray[np.int32],
    sources: NDArray[np.int32],
    positions: NDArray[np.int32],
    in_degrees: NDArray[np.int32],
) -> Subgraph:
    """The first layer of a mini-batch, as :func:`_tell` tells it.

    Parameters
    ----------
    moment: epoch and iteration. iteration_key: of dropout masks.
    """
    (relation,) = sampler.topologies
    indptr = np.zeros(degrees.size + 1, np.int64)
    np.cumsum(degrees, out=indptr[1:])
    # Masks of edges, which positions key, are the business of the rank that trains the mini-batch.
    edges = HopEdges(indptr, sources.astype(np.int64), positions.astype(np.int64))
    target, hop = sampler.target, len(sampler.fanouts) - 1
    versions = words.view(sampler.version_dtype).astype(np.int64)
    nodes, times = sampler.nodes_and_times({target: versions})
    return Subgraph(
        target=target,
        nodes=nodes,
        sizes=[{target: degrees.size}, {target: versions.size}],
        hops=[{relation: edges}],
        topologies=sampler.topologies,
        original_ids=sampler.original_ids,
        iteration_key=iteration_key,
        inclusions=sampler.inclusions_at(moment)[hop:],
        times=times,
        in_degrees={relation: in_degrees.astype(np.int64)} if in_degrees.size else {},
    )
