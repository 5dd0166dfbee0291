"""A model on DistDGL: what its servers and trainers run.

``python distdgl_trainer.py JOB.json`` with DistDGL's environment (distdgl_host.py). A server serves
until its clients have left; a trainer trains, and rank 0 writes epochs and accuracy.
"""

from __future__ import annotations

import json
import sys
import time
from itertools import islice
from pathlib import Path
from typing import Any

import dgl
import torch
from distdgl_models import make_model
from torch import nn


class Graph:
    """DistDGL's graph: rows of inputs, labels and splits, of one node type or several."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.job, self.target = job, job["target"]
        self.is_typed = len(job["types"]) > 1
        self.whole = dgl.distributed.DistGraph(job["name"], part_config=job["partitioned"])
        self.learned = {
            name: dgl.distributed.DistEmbedding(
                kind["count"], job["hidden"], name=f"learned_{name}", init_func=_init,
                part_policy=self.whole.get_node_partition_policy(name),
            )
            for name, kind in job["types"].items() if not kind["dim"]
        }  # fmt: skip

    def data(self, node_type: str) -> Any:
        return self.whole.nodes[node_type].data if self.is_typed else self.whole.ndata

    def rows(self, inputs: Any) -> Any:
        """Return the input rows of a block."""
        if not self.is_typed:
            return self.data(self.target)["feat"][inputs]
        return {
            name: self.learned[name](ids) if name in self.learned else self.data(name)["feat"][ids]
            for name, ids in inputs.items()
            if len(ids)
        }

    def labels(self, roots: Any) -> torch.Tensor:
        return self.data(self.target)["label"][roots[self.target] if self.is_typed else roots]

    def own(self, split: str) -> torch.Tensor:
        """Return this trainer's share of a split: nodes of its own server, as many on every
        trainer."""
        words = {"ntype": self.target} if self.is_typed else {}
        mask = self.data(self.target)[f"{split}_mask"]
        return dgl.distributed.node_split(
            mask, self.whole.get_partition_book(), force_even=True, **words
        )

    def random(self, split: str, rank: int) -> torch.Tensor:
        """Return this trainer's share of a split: nodes of any server."""
        mask = self.data(self.target)[f"{split}_mask"]
        every = torch.nonzero(mask[torch.arange(len(mask))]).flatten()
        order = torch.randperm(len(every), generator=torch.Generator().manual_seed(0))
        share = len(every) // self.job["hosts"]
        return every[order[rank * share : (rank + 1) * share]]

    def loader(self, nodes: torch.Tensor, fanouts: list[int], batch: int, shuffle: bool) -> Any:
        return dgl.dataloading.DistNodeDataLoader(
            self.whole,
            {self.target: nodes} if self.is_typed else nodes,
            dgl.dataloading.NeighborSampler(fanouts),
            batch_size=batch,
            shuffle=shuffle,
            drop_last=False,
        )


def main(job: dict[str, Any]) -> None:
    words = {"use_graphbolt": True} if job["graphbolt"] else {}
    dgl.distributed.initialize(job["ip_config"], **words)
    torch.distributed.init_process_group("gloo")
    rank = torch.distributed.get_rank()
    torch.manual_seed(0)
    graph = Graph(job)
    nodes = graph.random("train", rank) if job["batches"] == "random" else graph.own("train")
    loader = graph.loader(nodes, job["fanouts"], job["batch_size"], shuffle=True)
    model = make_model(job)
    # If a batch lacks a relation, the relation's matrix has no gradient.
    parallel = nn.parallel.DistributedDataParallel(model, find_unused_parameters=graph.is_typed)
    optimizers = [torch.optim.Adam(parallel.parameters(), lr=job["learning_rate"])]
    if graph.learned:
        rows = list(graph.learned.values())
        optimizers.append(dgl.distributed.optim.SparseAdam(rows, lr=job["learning_rate"]))
    epochs = []
    for index in range(job["epochs"]):
        torch.distributed.barrier()
        begun, sent_before = time.perf_counter(), sent_bytes(job["interface"])
        steps, loss_sum = 0, 0.0
        for inputs, roots, blocks in islice(loader, job["iterations"] or None):
            loss = nn.functional.cross_entropy(
                parallel(blocks, graph.rows(inputs)), graph.labels(roots)
            )
            for optimizer in optimizers:
                if isinstance(optimizer, torch.optim.Optimizer):
                    optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            steps += 1
            loss_sum += float(loss.detach())
        torch.distributed.barrier()
        seconds = time.perf_counter() - begun
        measures = torch.tensor(
            [loss_sum / max(1, steps), sent_bytes(job["interface"]) - sent_before]
        )
        every = [torch.zeros(2) for _ in range(job["hosts"])]
        torch.distributed.all_gather(every, measures)
        epochs.append(
            {
                "seconds": seconds,
                "iterations": steps,
                "loss": sum(float(result[0]) for result in every) / len(every),
                "nic_bytes": [int(result[1]) for result in every],
            }
        )
        if rank == 0:
            print(f"epoch {index}: {seconds:.2f} s", flush=True)
    accuracy = score(graph, model, job) if job["score"] else None
    if rank == 0:
        scores = {} if accuracy is None else {"accuracy": accuracy}
        measures = {"epochs": epochs, "scores": {"test": scores}}
        Path(job["result"]).write_text(json.dumps(measures))
    torch.distributed.barrier()


def score(graph: Graph, model: nn.Module, job: dict[str, Any]) -> float:
    """Compute the test accuracy over all neighbours. Every trainer scores its own nodes."""
    nodes = graph.own("test")
    right = torch.zeros(2)
    loader = graph.loader(nodes, [-1] * len(job["fanouts"]), max(1, len(nodes)), shuffle=False)
    with torch.no_grad():
        for inputs, roots, blocks in loader:
            logits = model(blocks, graph.rows(inputs))
            right += torch.tensor([(logits.argmax(1) == graph.labels(roots)).sum(), len(logits)])
    torch.distributed.all_reduce(right)
    return float(right[0] / right[1])


def sent_bytes(interface: str) -> int:
    """Return the bytes that this host's interface has sent so far."""
    for line in Path("/proc/self/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == interface:
            return int(numbers.split()[8])
    raise ValueError(f"expected an interface {interface}, found none")


def _init(shape: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype).uniform_(-1, 1) * shape[1] ** -0.5


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
