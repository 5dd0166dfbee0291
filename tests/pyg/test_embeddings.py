"""Embeddings by layers of one's own are those of the whole graph, also after a break."""

from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

import hopper

pytest.importorskip("torch_geometric")

from torch_geometric.nn import SAGEConv

from hopper.pyg import write_embeddings


class Broken(Exception):
    """The call is broken off."""


def make_layers() -> list[SAGEConv]:
    torch.manual_seed(7)
    return [SAGEConv(10, 8), SAGEConv(8, 6)]


def write_as_rank(parts: str, folder: str, breaks_at: int, servers: list[str]) -> int:
    """Write embeddings as one of several ranks; returns how often layers were called."""
    dist.init_process_group("gloo")
    calls = 0

    def layer_of(conv: SAGEConv) -> Any:
        def layer(batch: Any, _: str) -> torch.Tensor:
            nonlocal calls
            calls += 1
            if calls == breaks_at:
                raise Broken
            return conv(batch.x, batch.edge_index).relu()[: batch.batch_size]

        return layer

    with hopper.connect(parts, servers) as graph, suppress(Broken):
        write_embeddings(graph, list(map(layer_of, make_layers())), folder, batch_size=4)
    dist.destroy_process_group()
    return calls


def test_two_ranks_write_the_rows_of_all_nodes(
    community_graph, parts, serve_partitions, run_ranks, tmp_path
):
    """The first call is broken off in its first layer, and the second one goes on."""
    servers, out = serve_partitions(parts, 2), tmp_path / "out"
    assert run_ranks(write_as_rank, 2, str(parts), str(out), 30, servers) == [30, 30]
    # Of 38 batches a layer 16 were kept.
    assert run_ranks(write_as_rank, 2, str(parts), str(out), 0, servers) == [60, 60]
    found = np.full((300, 6), np.nan, np.float32)
    for rank in range(2):
        ids = np.load(out / "layer-2" / "item" / f"ids-{rank}.npy")
        found[ids] = np.load(out / "layer-2" / "item" / f"rows-{rank}.npy")
    topology = community_graph.topology(hopper.Relation("item", "near", "item"))
    edges = torch.from_numpy(
        np.stack([np.asarray(topology.indices, np.int64), topology.list_destinations()])
    )
    rows = torch.from_numpy(np.array(community_graph.features("item")))
    with torch.no_grad():
        for layer in make_layers():
            rows = layer(rows, edges).relu()
    assert np.allclose(found, rows, atol=1e-4)


def test_typed_layers_are_called_for_every_type(graph_of, parts_of, tmp_path):
    graph, called = graph_of("bare"), list[str]()

    def degrees(batch: Any, node_type: str) -> torch.Tensor:
        """Count the in-edges of each node, with those of its sources."""
        called.append(node_type)
        store = batch[node_type]
        total = torch.ones(store.batch_size, 1)
        for (source, _, target), edges in batch.edge_index_dict.items():
            if target == node_type and edges.numel():
                rows = (
                    batch[source].x if len(called) > 3 else torch.ones(batch[source].num_nodes, 1)
                )
                total.index_add_(0, edges[1], rows[edges[0], :1])
        return total

    with hopper.connect(parts_of("bare")) as connected:
        with pytest.raises(hopper.RequestError, match="layers: expected at least one"):
            write_embeddings(connected, [], tmp_path / "out")
        folder = write_embeddings(connected, [degrees, degrees], tmp_path / "out", batch_size=500)
        with pytest.raises(hopper.RequestError, match=r"out: .* has rows of another call"):
            write_embeddings(connected, [degrees, degrees], tmp_path / "out", batch_size=400)
    assert called == ["author", "field", "paper", "paper"]
    rows = np.load(folder / "paper" / "rows-0.npy")[:, 0]
    counts = {name: np.ones(kind.count) for name, kind in graph.schema.node_types.items()}
    for _ in range(2):
        new = {name: np.ones(kind.count) for name, kind in graph.schema.node_types.items()}
        for relation in graph.schema.relations:
            topology = graph.topology(relation)
            ends = topology.list_destinations()
            np.add.at(new[relation.dst], ends, counts[relation.src][topology.indices])
        counts = new
    assert np.array_equal(rows, counts["paper"])
