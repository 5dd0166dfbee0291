"""Gradients of DistributedDataParallel scripts under the loaders do not depend on ranks."""

from pathlib import Path

import pytest
import torch

from hopper.partition import partition_graph
from tests.engines.graphs import WITH_FEATURES, make_graph

pytest.importorskip("torch_geometric")

RANK_SCRIPT = Path(__file__).with_name("ddp_rank.py")
LIMIT = 1e-10


@pytest.mark.parametrize("kind", ["nodes", "typed", "blocks"])
def test_gradients_on_any_number_of_ranks_are_those_of_one(
    kind, community_graph, serve_partitions, run_ranks, tmp_path
):
    """With two servers; some ranks have no roots in some steps."""
    if kind == "typed":
        community_graph = make_graph(tmp_path / "typed", WITH_FEATURES)
    parts = tmp_path / "parts"
    partition_graph(community_graph, parts, 2, "random")
    servers = serve_partitions(parts, 2)
    gradients = {}
    rootless = 0
    for world in (1, 2, 4):
        results = run_ranks(RANK_SCRIPT, world, tmp_path / f"{world}", str(parts), kind, *servers)
        for checked in (result["checked"] for result in results):
            assert checked["summed"] < LIMIT
            assert ("gradients: those of" in checked["mean"]) == (world > 1)
        rootless += sum(result["rootless"] for result in results)
        assert all(result["gradients"] == results[0]["gradients"] for result in results)
        gradients[world] = torch.tensor(results[0]["gradients"], dtype=torch.float64)
    assert rootless
    assert gradients[1].abs().max() > 0.01
    for world in (2, 4):
        assert torch.allclose(gradients[world], gradients[1], rtol=0, atol=LIMIT)
