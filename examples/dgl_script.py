"""A script in DGL's idiom: python dgl_script.py PARTS, under torchrun with addresses, or without
arguments as the script of hopper host and hopper train."""

import os
import sys

import torch
import torch.distributed as dist
from dgl.nn import SAGEConv
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import hopper


class Sage(nn.Module):
    def __init__(self, in_dim, out_dim, hidden=16):
        super().__init__()
        widths = [in_dim, hidden, out_dim]
        self.layers = nn.ModuleList([SAGEConv(*widths[i : i + 2], "mean") for i in range(2)])

    def forward(self, blocks, x):
        for number, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, (x, x[: block.num_dst_nodes()]))
            x = x.relu() if number < len(self.layers) - 1 else x
        return x


def main(parts, servers, epochs=3):
    world = dist.get_world_size() if dist.is_initialized() else 1
    torch.manual_seed(1)
    with hopper.connect(parts, servers) as graph:
        schema = graph.graph.schema
        target = schema.target_type()
        loader = hopper.loader(graph, [10, 5], batch_size=64 // world)
        model = Sage(schema.node_types[target].feature_dim, schema.labels[target].classes)
        if dist.is_initialized():
            model = DistributedDataParallel(model)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for epoch in range(epochs):
            total = 0.0
            for batch in loader:
                optimizer.zero_grad()
                out = model(batch.as_dgl(), batch.x)
                loss = cross_entropy(out, batch.labels, reduction="sum") * batch.loss_scale
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
