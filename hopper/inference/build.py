"""Chooses how rows of nodes are computed, by the layout of the graph."""

from __future__ import annotations

import torch

from hopper.engines.assemble import make_full_sampler
from hopper.engines.build import make_elsewhere
from hopper.hetero.root_shares import RootShares
from hopper.inference.by_relation import ByRelation
from hopper.inference.inference import Inference, Scene
from hopper.inference.layer_wise import LayerWise
from hopper.inference.neighbourhoods import Neighbourhoods


def make_inference(scene: Scene, model: torch.nn.Module) -> Inference:
    """Make the object that computes rows of a graph's nodes.

    Parameters
    ----------
    model: a model of the kind whose rows will be computed.
    """
    request, cluster = scene.request, scene.cluster
    sampler = make_full_sampler(request, cluster.server, model, at=scene.at)
    # In-edges of nodes of other servers are drawn by these.
    sampler.elsewhere = make_elsewhere(request.graph, scene.rows, cluster.traffic)
    partitions = request.reads.partitions
    if partitions:
        types, per_server = request.schema.root_types, cluster.ranks_per_server
        shares = {node_type: RootShares(partitions, per_server, node_type) for node_type in types}
        return ByRelation(scene, sampler, shares)
    if request.reads_times:
        return Neighbourhoods(scene, sampler)
    return LayerWise(scene, sampler)
