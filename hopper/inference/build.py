"""From a graph's layout to the way in which rows of its nodes are computed."""

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
    """What computes rows of a graph.

    Parameters
    ----------
    model: one like those whose rows will be computed.
    """
    request, cluster = scene.request, scene.cluster
    sampler = make_full_sampler(request, cluster.server, model, at=scene.at)
    # Layer by layer a rank draws for its own nodes alone.
    sampler.elsewhere = make_elsewhere(request.graph, scene.rows, cluster.traffic)
    holdings = request.reads.holdings
    if holdings:
        types, per_server = request.schema.root_types, cluster.ranks_per_server
        shares = {each: RootShares(holdings, per_server, each) for each in types}
        return ByRelation(scene, sampler, shares)
    if request.reads_times:
        return Neighbourhoods(scene, sampler)
    return LayerWise(scene, sampler)
