"""Link prediction on real graphs: one process, two servers, and the same model in PyG side by side.

usage: python -m benchmarks.link_prediction --data DIR --out DIR [--rounds 5] [--only NAME ...]

DIR holds cora, amazon_computers and acm_heco in the npy layout of
docs/reference/graph-directory.md. Edges are split 85/5/10 by seed. Every side has the same model,
features, split, negatives (64 for each end, shared by a batch of 1,024 links), loss, learning rate
and epochs, reads all neighbours but the edges of the batch, and ranks test links in the same way
(filtered, among all nodes, for both ends), with the parameters of its best validation. PyG
(torch_geometric, in a plain loop over batches of links) draws its own negatives and initial
weights, so it is compared by what it reaches, not number by number.

A cell is a graph and a model, a round is a seed. A line has a side's median MRR or share of hits
among the first ten, on test links.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.rounds import Results, make_parser
from hopper.bench.train_process import train_in_process
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit, import_graph
from hopper.graph.topology import Links
from hopper.hetero.divide import divide_graph
from hopper.partition import PartitionedGraph

RUN_SECONDS = 1200.0
BATCH, NEGATIVES, HIDDEN, LEARNING_RATE = 1024, 64, 64, 0.01
LINKS_AT_ONCE = 4096
SIDES = {
    "one process": (1, "model_centric"),
    "zero_hop, 2 servers": (2, "zero_hop"),
    "cooperative, 2 servers": (2, "cooperative"),
}
METRICS = ("mrr", "hits@10")
Key = tuple[str, str, str]
Edges = dict[Key, Tensor]
"""by relation, [2, edges]: sources and destinations"""


class Case(NamedTuple):
    """A data set, what is predicted of it, and a model."""

    data: str
    target: str
    model: str
    decoder: str
    epochs: int
    options: ImportOptions


CASES = (
    Case("cora", "edge", "sage", "dot", 20, ImportOptions(row_normalize=True)),
    Case("amazon_computers", "edge", "sage", "dot", 1,
         ImportOptions(symmetrize=True, row_normalize=True)),
    Case("acm_heco", "written_by", "rgcn", "distmult", 20,
         ImportOptions(add_reverse="cross-type", row_normalize=True)),
)  # fmt: skip


def run_case(
    case: Case, seed: int, source: Path, work: Path, with_pyg: bool
) -> dict[str, dict[str, float]]:
    """Train every side on a graph. Return its test scores."""
    folder = work / f"{case.data}-{seed}"
    split = RandomSplit(0.85, 0.05)
    options = dataclasses.replace(case.options, targets=(case.target,), split=split, seed=seed)
    import_graph("npy", str(source / case.data), folder / "graph", options)
    graph = GraphDirectory.open(folder / "graph")
    config = folder / "config.toml"
    config.touch()
    for servers in (1, 2):
        divide_graph(graph, folder / f"parts-{servers}", servers)
    scores: dict[str, dict[str, float]] = {}
    for side, (servers, engine) in SIDES.items():
        keys = {
            "data.partitioned": folder / f"parts-{servers}", "sampler.fanouts": "[-1, -1]",
            "model.name": case.model, "model.layers": 2, "model.hidden": HIDDEN,
            "task.decoder": case.decoder, "task.num_negatives": NEGATIVES,
            "train.engine": engine, "train.batch_size": BATCH // servers,
            "train.epochs": case.epochs, "train.seed": seed,
            "train.learning_rate": LEARNING_RATE, "train.more_metrics": '["hits@10"]',
        }  # fmt: skip
        words = [f"--{key}={value}" for key, value in keys.items()]
        name = f"{case.data}, {side}, seed {seed}"
        run_dir = folder / f"{engine}-{servers}"
        summary = train_in_process(name, config, run_dir, words, RUN_SECONDS)
        scores[side] = {name: summary["scores"]["test"][name] for name in METRICS}
        scores["a random order"] = {name: summary["baselines"]["test"][name] for name in METRICS}
    if with_pyg:
        scores["PyG"] = train_pyg(case, graph, folder / "parts-1", seed)
    return scores


def train_pyg(case: Case, graph: GraphDirectory, parts: Path, seed: int) -> dict[str, float]:
    """Train the same model by PyG in this process. Return its test scores."""
    torch.manual_seed(seed)
    stored, schema = PartitionedGraph.open(parts), graph.schema
    (target,) = schema.target_relations
    counts = {name: kind.count for name, kind in schema.node_types.items()}
    features = {
        name: torch.from_numpy(np.array(graph.features(name)))
        for name, kind in schema.node_types.items()
        if kind.feature_dim
    }
    edges: Edges = {}
    for key in schema.relations:
        topology = stored.topology(key)
        dst = np.repeat(np.arange(topology.in_degrees.size), np.diff(topology.indptr))
        src = stored.original_ids(key.src)[topology.indices]
        edges[key[0], key[1], key[2]] = torch.from_numpy(
            np.stack((src, stored.original_ids(key.dst)[dst]))
        )
    reverses: list[Any] = [tuple(reverse) for reverse in stored.reverse_relations(target)]
    model = PygModel(case, features, counts, [*edges], target)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    links = {name: graph.links(name) for name in schema.splits}
    train = torch.from_numpy(np.stack((links["train"].src, links["train"].dst)))
    best, best_state = -1.0, copy.deepcopy(model.state_dict())
    for _ in range(case.epochs):
        model.train()
        for positions in torch.randperm(train.shape[1]).split(BATCH):
            batch = train[:, positions]
            loss = model.loss(leave_out(edges, target, reverses, batch, counts), batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        score = rank(model, edges, links, "val")["mrr"]
        if score > best:
            best, best_state = score, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_state)
    return rank(model, edges, links, "test")


def leave_out(
    edges: Edges, relation: Key, reverses: list[Key], batch: Tensor, counts: dict[str, int]
) -> Edges:
    """Return the edges without those that would reveal a batch of links."""
    kept = dict(edges)
    for key, ends in ((relation, batch), *((reverse, batch.flip(0)) for reverse in reverses)):
        width, pairs = counts[key[2]], kept[key]
        revealing = torch.isin(pairs[0] * width + pairs[1], ends[0] * width + ends[1])
        kept[key] = pairs[:, ~revealing]
    return kept


class PygModel(nn.Module):
    """GraphSAGE, or R-GCN as sums of means over relations, with PyG's convolutions.

    Parameters
    ----------
    features: of node types that have some, [nodes, width].
    relations: those of the graph, of which ``target`` is predicted.
    """

    def __init__(
        self, case: Case, features: dict[str, Tensor], counts: dict[str, int],
        relations: list[Key], target: Key,
    ) -> None:  # fmt: skip
        from torch_geometric.nn import HeteroConv, SAGEConv

        super().__init__()
        self.features, self.counts, self.target = features, counts, target
        self.decoder = nn.Parameter(torch.ones(HIDDEN)) if case.decoder == "distmult" else None
        widths = {name: rows.shape[1] for name, rows in features.items()}
        typed = case.model == "rgcn"
        maps: Any = {name: nn.Linear(widths.get(name, HIDDEN), HIDDEN) for name in counts if typed}
        self.rows = nn.ParameterDict(
            {name: torch.randn(counts[name], HIDDEN) / 8 for name in counts if name not in widths}
        )
        self.inputs = nn.ModuleDict(maps)

        def make_layer(width: int) -> nn.Module:
            plain = {"root_weight": False, "bias": False} if typed else {}
            convolutions = {key: SAGEConv(width, HIDDEN, **plain) for key in relations}
            return HeteroConv(convolutions, aggr="sum")

        first = HIDDEN if typed else max(widths.values())
        self.layers = nn.ModuleList([make_layer(first), make_layer(HIDDEN)])
        own: Any = [{name: nn.Linear(HIDDEN, HIDDEN) for name in maps} for _ in self.layers]
        self.own = nn.ModuleList(map(nn.ModuleDict, own))

    def embed(self, edges: Edges) -> dict[str, Tensor]:
        """Compute the rows of all nodes by type, [nodes, width]."""
        rows = {**self.features, **self.rows}
        rows = {name: self.inputs[name](h) if self.inputs else h for name, h in rows.items()}
        for layer, own in zip(self.layers, self.own, strict=True):
            new = layer(rows, edges)
            for name, linear in own.items():
                new[name] = new.get(name, 0) + linear(rows[name])
            is_last = layer is self.layers[-1]
            rows = new if is_last else {name: h.relu() for name, h in new.items()}
        return rows

    def scores(self, heads: Tensor, tails: Tensor) -> Tensor:
        """Return [n, m]: the scores of all pairs."""
        return (heads if self.decoder is None else heads * self.decoder) @ tails.T

    def loss(self, edges: Edges, batch: Tensor) -> Tensor:
        """Return [] the mean over links of the cross-entropy among negatives for both ends."""
        rows = self.embed(edges)
        source, _, destination = self.target
        heads, tails = rows[source][batch[0]], rows[destination][batch[1]]
        decoded_heads = heads if self.decoder is None else heads * self.decoder
        link_scores = (decoded_heads * tails).sum(1, keepdim=True)
        others = [torch.randint(self.counts[name], (NEGATIVES,)) for name in (destination, source)]
        wrong_tails = self.scores(heads, rows[destination][others[0]])
        wrong_heads = self.scores(rows[source][others[1]], tails).T
        logits = torch.cat((link_scores, wrong_tails, wrong_heads), 1)
        return nn.functional.cross_entropy(logits, torch.zeros(len(link_scores), dtype=torch.int64))


@torch.no_grad()
def rank(model: PygModel, edges: Edges, links: dict[str, Links], split: str) -> dict[str, float]:
    """Rank every link of a split for both of its ends. Return the filtered scores."""
    model.eval()
    rows = model.embed(edges)
    scores = model.scores(rows[model.target[0]], rows[model.target[2]])
    is_known = torch.zeros_like(scores, dtype=torch.bool)
    ends = {name: torch.from_numpy(np.stack((one.src, one.dst))) for name, one in links.items()}
    for src, dst in ends.values():
        is_known[src, dst] = True
    ranks = []
    for table, known, pairs in (
        (scores, is_known, ends[split]),
        (scores.T, is_known.T, ends[split].flip(0)),
    ):
        for at, true in (chunk.unbind() for chunk in pairs.split(LINKS_AT_ONCE, 1)):
            own = table[at, true].unsqueeze(1)
            others = table[at].masked_fill(known[at], -torch.inf)
            ranks.append(1 + (others > own).sum(1) + (others == own).sum(1) / 2)
    all_ranks = torch.cat(ranks).double()
    hits = float((all_ranks <= 10).double().mean())
    return {"mrr": float((1 / all_ranks).mean()), "hits@10": hits}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    names = [case.data for case in CASES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="data sets")
    parser.add_argument("--without-pyg", action="store_true")
    options = parser.parse_args(arguments)
    results = Results("link-prediction", options.out)
    with tempfile.TemporaryDirectory(prefix="link-prediction-") as work:
        for case in (case for case in CASES if case.data in options.only):
            runs = [
                run_case(case, seed, options.data, Path(work), not options.without_pyg)
                for seed in range(options.rounds)
            ]
            measured = {
                side: {f"test {name}": np.array([[run[side][name]] for run in runs])
                       for name in METRICS}
                for side in runs[0]
            }  # fmt: skip
            results.add(f"{case.data}, {case.model}, {case.decoder}", measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
