"""GraphSAGE on DistDGL 1.1.3: what its servers and trainers run.

``python distdgl_trainer.py JOB.json`` with DistDGL's environment (distdgl_host.py). A server serves
until its clients have left; a trainer trains, and rank 0 writes epochs and the final weights.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import dgl
import torch
from safetensors.torch import save_file
from torch import nn


class SAGE(nn.Module):
    """Mean GraphSAGE with DGL's own layers."""

    def __init__(self, in_dim: int, hidden: int, classes: int, layers: int) -> None:
        super().__init__()
        widths = [in_dim, *[hidden] * (layers - 1), classes]
        self.layers = nn.ModuleList(dgl.nn.SAGEConv(a, b, "mean") for a, b in pairwise(widths))

    def forward(self, blocks: list[Any], x: torch.Tensor) -> torch.Tensor:
        for index, (layer, block) in enumerate(zip(self.layers, blocks, strict=True)):
            x = layer(block, x)
            if index < len(self.layers) - 1:
                x = torch.relu(x)
        return x


def main(job: dict[str, Any]) -> None:
    dgl.distributed.initialize(job["ip_config"])
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(job["seed"])
    graph = dgl.distributed.DistGraph(job["name"], part_config=job["partitioned"])
    nodes = training_nodes(graph, job, rank)
    loader = dgl.dataloading.DistNodeDataLoader(
        graph,
        nodes,
        dgl.dataloading.NeighborSampler(job["fanouts"]),
        batch_size=job["batch_size"],
        shuffle=True,
        drop_last=False,
    )
    model = SAGE(job["in_dim"], job["hidden"], job["classes"], len(job["fanouts"]))
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(parallel.parameters(), lr=job["learning_rate"])
    epochs = []
    for _ in range(job["epochs"]):
        torch.distributed.barrier()
        begun = time.perf_counter()
        steps, loss_sum = 0, 0.0
        for inputs, roots, blocks in islice(loader, job["iterations"] or None):
            x = graph.ndata["feat"][inputs]
            labels = graph.ndata["label"][roots]
            loss = nn.functional.cross_entropy(parallel(blocks, x), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            steps += 1
            loss_sum += float(loss)
        torch.distributed.barrier()
        epochs.append(
            {
                "seconds": time.perf_counter() - begun,
                "iterations": steps,
                "loss": loss_sum / max(1, steps),
            }
        )
        if rank == 0:
            print(f"epoch {len(epochs) - 1}: {epochs[-1]['seconds']:.2f} s", flush=True)
    if rank == 0:
        out = Path(job["out"])
        save_file({k: v.detach().contiguous() for k, v in model.state_dict().items()},
                  str(out / "model.safetensors"))  # fmt: skip
        (out / "epochs.json").write_text(json.dumps(epochs))
    torch.distributed.barrier()


def training_nodes(graph: Any, job: dict[str, Any], rank: int) -> torch.Tensor:
    """This trainer's training nodes, as many on every trainer: local ones, or random ones."""
    mask = graph.ndata["train_mask"]
    book = graph.get_partition_book()
    if job["batches"] == "local":
        return dgl.distributed.node_split(mask, book, force_even=True)
    every = torch.nonzero(mask[torch.arange(graph.num_nodes())]).flatten()
    order = torch.randperm(len(every), generator=torch.Generator().manual_seed(job["seed"]))
    share = len(every) // job["hosts"]
    return every[order[rank * share : (rank + 1) * share]]


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
