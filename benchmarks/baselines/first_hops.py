"""First layers of mini-batches, and how ranks send them to the ranks that compute parts of them.

Engines that divide the first layer share this module. ``p3`` divides it by the columns of input
rows, ``naive`` by the servers that store these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.baselines.split_layer import split_layer
from hopper.cluster.array_exchange import exchange_arrays
from hopper.cluster.cluster import Cluster
from hopper.engines import Plan, Request, TrainState
from hopper.engines.assemble import make_model
from hopper.errors import RequestError
from hopper.graph.block import Block
from hopper.micrograph.route import GlobalBatch
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import HopEdges, Subgraph
from hopper.tasks import pair_scores

_NONE: Final = np.empty(0, np.int32)


@dataclass(frozen=True)
class FirstHopsPlan(Plan):
    """A rank's part of an iteration whose first layer is divided.

    Attributes
    ----------
    subgraph: the subgraph of this rank's mini-batch.
    first_hops: by rank, the subgraph of the first layer of that rank's mini-batch. It holds the
        partners of this rank, and this rank itself.
    """

    subgraph: Subgraph
    first_hops: Mapping[int, Subgraph]


def check_first_layer(request: Request, engine: str) -> None:
    """Refuse a request whose first layer cannot be divided.

    Raises
    ------
    RequestError: the message names the key, the expected value and the given value.
    """
    config = request.config
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
            f"cache.policy: under {engine} no rows travel, so there is nothing to cache; expected "
            f'"none", given "{config.cache.policy}"'
        )
    if config.train.micro_batch:
        raise RequestError(
            f"train.micro_batch: {engine} trains a mini-batch in one pass; expected 0, given "
            f"{config.train.micro_batch}"
        )
    split_layer(make_model(request), range(request.reads.widths[request.reads.target]), engine)


def draw_first_hops(
    state: TrainState, batch: GlobalBatch, partners: Sequence[int]
) -> tuple[Subgraph, dict[int, Subgraph]]:
    """Draw this rank's mini-batch, and exchange first layers with its partners.

    Every rank must call it.

    Parameters
    ----------
    partners: the ranks that exchange first layers with this one, itself among them.

    Returns
    -------
    The subgraph of this rank's mini-batch, and by partner, in order, that of the first layer of
    the partner's mini-batch.
    """
    sampler, rank = state.trainer.sampler, state.cluster.rank
    with state.log.stage("sample") as fields:
        roots = batch.of_model(rank)
        fields["roots"] = int(roots.size)
        subgraph = state.trainer.sample_once(roots, batch.epoch, batch.iteration)
        return subgraph, _exchange(state.channel, sampler, subgraph, partners, batch)


def first_block(
    hop: Subgraph, own_block: Block | None, edge_dim: int, device: torch.device
) -> Block:
    """Make the block of a mini-batch's first layer.

    Parameters
    ----------
    hop: the first layer, as its rank sent it.
    own_block: the block that this rank made, if it trains the mini-batch; otherwise None. Only that
        rank adds what features of edges contribute, so other ranks compute with zeros.
    edge_dim: the width of features of edges; 0 = the model reads none.
    """
    (block,) = hop.blocks(device)
    if edge_dim and own_block is not None:
        block.edge_features = own_block.edge_features
    elif edge_dim:
        block.edge_features = torch.zeros(1, 1, device=device).expand(block.num_edges, edge_dim)
    return block


def score_roots(state: TrainState, rows: torch.Tensor, subgraph: Subgraph) -> torch.Tensor:
    """Return the inputs [n, ...] of the loss, made from the roots' rows: where nodes are predicted,
    the rows themselves, otherwise the scores of pairs."""
    if subgraph.pairs is None:
        return rows
    return pair_scores(state.packed.module, rows, subgraph.pairs)


def _exchange(
    cluster: Cluster,
    sampler: NeighborSampler,
    subgraph: Subgraph,
    partners: Sequence[int],
    batch: GlobalBatch,
) -> dict[int, Subgraph]:
    """Exchange first layers, and return the subgraph of each partner's."""
    encoded = _encode_first_hop(sampler, subgraph)
    others = [rank for rank in partners if rank != cluster.rank]
    groups = [
        [array if rank in others else _NONE for rank in range(cluster.world)] for array in encoded
    ]
    where = f"telling what first layers read, {batch.where}"
    received = exchange_arrays(cluster, groups, "topology", where)
    arrays = {rank: [by_rank[rank] for by_rank in received] for rank in others}
    arrays[cluster.rank] = encoded
    moment, key = (batch.epoch, batch.iteration), subgraph.iteration_key
    return {rank: _decode_first_hop(sampler, moment, key, *arrays[rank]) for rank in partners}


def _encode_first_hop(sampler: NeighborSampler, subgraph: Subgraph) -> list[NDArray[np.int32]]:
    """Encode the first layer of a mini-batch as int32 arrays.

    Returns
    -------
    The versions of its nodes, destinations first; the number of edges of each destination; the
    index of each edge's source among the nodes; the edges' positions, if probabilities follow from
    them; and the in-degrees, if other ranks do not have them.
    """
    ((relation, edges),) = subgraph.hops[-1].items()
    nodes, times = subgraph.nodes[subgraph.target], subgraph.times.get(subgraph.target)
    versions = sampler.versions_at(subgraph.target, nodes, times).astype(sampler.version_dtype)
    arrays = [versions.view(np.int32), np.diff(edges.indptr), edges.indices]
    arrays.append(_NONE if subgraph.inclusions[-1] is None else edges.positions)
    arrays.append(subgraph.in_degrees.get(relation, _NONE))
    return [array.astype(np.int32, copy=False) for array in arrays]


def _decode_first_hop(
    sampler: NeighborSampler,
    moment: tuple[int, int],
    iteration_key: int,
    words: NDArray[np.int32],
    degrees: NDArray[np.int32],
    sources: NDArray[np.int32],
    positions: NDArray[np.int32],
    in_degrees: NDArray[np.int32],
) -> Subgraph:
    """Decode the first layer of a mini-batch from the arrays of :func:`_encode_first_hop`.

    Parameters
    ----------
    moment: epoch and iteration.
    iteration_key: the key of dropout masks.
    """
    (relation,) = sampler.topologies
    indptr = np.zeros(degrees.size + 1, np.int64)
    np.cumsum(degrees, out=indptr[1:])
    # Positions key the dropout masks of edges, which only the mini-batch's own rank draws.
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
