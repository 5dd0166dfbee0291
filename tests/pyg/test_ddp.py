"""Gradients of DistributedDataParallel scripts under the loaders do not depend on ranks."""

from typing import Any

import own_loop
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import hopper

pytest.importorskip("torch_geometric")

from torch_geometric.nn import HeteroConv, SAGEConv

from hopper.pyg import NeighborLoader

LIMIT = 1e-10
GLOBAL_BATCH, EPOCHS = 8, 2


class Sage(nn.Module):
    """Two SAGEConv layers of PyG."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.first, self.second = SAGEConv(in_dim, 8), SAGEConv(8, out_dim)

    def forward(self, batch: Any) -> Tensor:
        rows = self.first(batch.x.double(), batch.edge_index).relu()
        return self.second(rows, batch.edge_index)[: batch.batch_size]

    def labels(self, batch: Any) -> Tensor:
        return batch.y


class TypedSage(nn.Module):
    """Two HeteroConv layers of PyG, with learned rows of types without features."""

    def __init__(self, graph: hopper.PartitionedGraph, out_dim: int) -> None:
        super().__init__()
        schema = graph.schema
        self.learned = nn.ModuleDict(
            {
                name: nn.Embedding(kind.count, 6)
                for name, kind in schema.node_types.items()
                if not kind.feature_dim
            }
        )
        widths = {name: kind.feature_dim or 6 for name, kind in schema.node_types.items()}
        relations = [tuple(relation) for relation in schema.ordered_relations()]
        self.first = HeteroConv(
            {name: SAGEConv((widths[name[0]], widths[name[2]]), 8) for name in relations}
        )
        into = [name for name in relations if name[2] == "paper"]
        self.second = HeteroConv({name: SAGEConv((8, 8), out_dim) for name in into})

    def forward(self, batch: Any) -> Tensor:
        rows = {name: x.double() for name, x in batch.x_dict.items()}
        for name, table in self.learned.items():
            rows[name] = table(batch[name].n_id)
        rows = {n: x.relu() for n, x in self.first(rows, batch.edge_index_dict).items()}
        # Only relations whose sources have rows can pass them on.
        edges = {name: e for name, e in batch.edge_index_dict.items() if name[0] in rows}
        rows = self.second(rows, edges)
        return rows["paper"][: batch["paper"].batch_size]

    def labels(self, batch: Any) -> Tensor:
        return batch["paper"].y


class Blocks(nn.Module):
    """The model of examples/own_loop.py on blocks."""

    def __init__(self, in_dim: int, out_dim: int) -> None:
        super().__init__()
        self.model = own_loop.MeanSage(in_dim, out_dim)

    def forward(self, batch: hopper.Batch) -> Tensor:
        return self.model(batch.blocks(), batch.x.double())

    def labels(self, batch: hopper.Batch) -> Tensor:
        assert batch.labels is not None
        return batch.labels


def check(loader: Any, model: Any) -> dict[str, Any]:
    """Compare gradients of the loss as it should be, and of the mean that scripts have."""

    def summed(_: nn.Module, batch: Any) -> Tensor:
        labels = model.labels(batch)
        return cross_entropy(model(batch), labels, reduction="sum") * batch.loss_scale

    def mean(_: nn.Module, batch: Any) -> Tensor:
        return cross_entropy(model(batch)[: len(model.labels(batch))], model.labels(batch))

    said = ""
    try:
        hopper.check_gradients(loader, model, mean, batches=4)
    except hopper.ExactnessError as error:
        said = str(error)
    return {"summed": hopper.check_gradients(loader, model, summed), "mean": said}


def train_as_rank(parts: str, kind: str, servers: list[str]) -> dict[str, Any]:
    """Train as one of several ranks, with a global batch of 8 roots; returns the gradients."""
    dist.init_process_group("gloo")
    torch.manual_seed(5)
    size = GLOBAL_BATCH // dist.get_world_size()
    with hopper.connect(parts, servers) as graph:
        if kind == "blocks":
            model: Any = Blocks(10, 6).double()
            loader: Any = hopper.loader(graph, [4, 2], batch_size=size, seed=3)
        elif kind == "nodes":
            model = Sage(10, 6).double()
            loader = NeighborLoader(graph, [3, 3], "train", batch_size=size, shuffle=True)
        else:
            model = TypedSage(graph.graph, 4).double()
            inputs = "paper", "train"
            loader = NeighborLoader(graph, [2, 2], inputs, batch_size=size, shuffle=True)
        checked = check(loader, model)
        replicated = DistributedDataParallel(model, find_unused_parameters=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        gradients, rootless = [], 0
        with loader:
            for _ in range(EPOCHS):
                for batch in loader:
                    optimizer.zero_grad()
                    labels = model.labels(batch)
                    rootless += labels.numel() == 0
                    loss = cross_entropy(replicated(batch), labels, reduction="sum")
                    (loss * batch.loss_scale).backward()
                    optimizer.step()
                    flat = [
                        torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten()
                        for p in model.parameters()
                    ]
                    gradients.append(torch.cat(flat).tolist())
    dist.destroy_process_group()
    return {"gradients": gradients, "rootless": rootless, "checked": checked}


@pytest.mark.parametrize("kind", ["nodes", "typed", "blocks"])
def test_gradients_on_any_number_of_ranks_are_those_of_one(
    kind, parts_of, serve_partitions, run_ranks
):
    """With two servers; some ranks have no roots in some steps."""
    parts = parts_of("bare" if kind == "typed" else "items")
    servers = serve_partitions(parts, 2)
    gradients = {}
    rootless = 0
    for world in (1, 2, 4):
        results = run_ranks(train_as_rank, world, str(parts), kind, servers)
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
