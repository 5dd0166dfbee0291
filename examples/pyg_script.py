"""A script in PyG's idiom: python pyg_script.py PARTS, under torchrun with addresses, or without
arguments as the script of hopper host and hopper train."""

import os
import sys

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel
from torch_geometric.nn import GraphSAGE

import hopper
from hopper.pyg import NeighborLoader


def main(parts, servers, epochs=3):
    world = dist.get_world_size() if dist.is_initialized() else 1
    torch.manual_seed(1)
    with hopper.connect(parts, servers) as graph:
        schema = graph.graph.schema
        target = schema.target_type()
        loader = NeighborLoader(
            graph,
            num_neighbors=[10, 10],
            input_nodes="train",
            batch_size=64 // world,
            shuffle=True,
        )
        width, classes = schema.node_types[target].feature_dim, schema.labels[target].classes
        model = GraphSAGE(width, 16, num_layers=2, out_channels=classes)
        if dist.is_initialized():
            model = DistributedDataParallel(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for epoch in range(epochs):
            total = 0.0
            for batch in loader:
                optimizer.zero_grad()
                out = model(batch.x, batch.edge_index)[: batch.batch_size]
                loss = cross_entropy(out, batch.y, reduction="sum") * batch.loss_scale
                loss.backward()
                optimizer.step()
                total += loss.item()
            print(f"epoch {epoch}: {len(loader)} batches, loss {total / len(loader):.4f}")


if __name__ == "__main__":
    parts, *servers = sys.argv[1:] or [""]
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    main(parts, servers)
    # The model is gone by now. One that outlives its group can hang at the end of the process.
    if dist.is_initialized():
        dist.destroy_process_group()
