"""A training loop of one's own in plain PyTorch: torchrun --nproc-per-node 2 own_loop.py PARTS"""

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn import Linear, Module, ModuleList
from torch.nn.functional import cross_entropy

import hopper


class MeanSage(Module):
    def __init__(self, in_dim, out_dim, hidden=8, **_):
        super().__init__()
        self.layers = ModuleList([Linear(2 * in_dim, hidden), Linear(2 * hidden, hidden)])
        self.head = Linear(hidden, out_dim)

    def forward(self, blocks, x):
        for block, layer in zip(blocks, self.layers, strict=True):
            sums = x.new_zeros(block.num_dst, x.shape[1])
            sums = sums.index_add(0, block.destinations(), x.index_select(0, block.indices))
            mean = sums / block.edges_per_destination().clamp(min=1)[:, None]
            x = layer(torch.cat([x[: block.num_dst], mean], 1)).relu()
        return self.head(x)


def train(graph, file, epochs=2, dtype=torch.float32):
    sampler = graph.sampler([3, 2], seed=3)
    schedule = graph.schedule(batch_size=9, seed=3)
    target = sampler.target

    def draw(moment):  # epoch and iteration
        batch = schedule.batch(*moment)
        return batch.size, sampler.sample(graph.own_roots(batch), *moment)

    def read(drawn):
        size, subgraph = drawn
        x = graph.rows.gather("features", target, subgraph.nodes[target])
        y = graph.rows.gather("labels", target, subgraph.roots)[:, 0]
        return size, subgraph.blocks(), torch.from_numpy(x).to(dtype), torch.from_numpy(y)

    stages = [hopper.Stage("draw", draw), hopper.Stage("read", read)]
    pipeline = hopper.Pipeline(stages, schedule.iterations, epochs)
    torch.manual_seed(3)
    model = MeanSage(in_dim=10, out_dim=6).to(dtype)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    saved = {"model": model, "optimizer": optimizer, "pipeline": pipeline}
    if file.exists():
        for name, state in torch.load(file, weights_only=True).items():
            saved[name].load_state_dict(state)
    with pipeline:
        for _ in range(epochs):
            for size, blocks, x, y in pipeline:
                optimizer.zero_grad()
                (cross_entropy(model(blocks, x), y, reduction="sum") / size).backward()
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                optimizer.step()
                torch.save({name: part.state_dict() for name, part in saved.items()}, file)


if __name__ == "__main__":
    dist.init_process_group("gloo")
    with hopper.connect(sys.argv[1], sys.argv[2:]) as graph:
        train(graph, Path(f"checkpoint-{dist.get_rank()}.pt"))
