"""Link prediction on real graphs: one process, two servers, and the same model in PyG side by side.

usage: python benchmarks/link_prediction.py --data DIR --out DIR [--seeds 3] [--only NAME ...]

DIR holds cora, amazon_computers and acm_heco in the npy layout of
docs/reference/graph-directory.md. Edges are split 85/5/10 by seed. Every side has the same model,
features, split, negatives (64 for each end, shared by a batch of 1,024 links), loss, learning rate
and epochs, reads all neighbours but the edges of the batch, and ranks test links in the same way,
with the parameters of its best validation. PyG (torch_geometric, in a plain loop over batches of
links) draws its own negatives and initial weights, so it is compared by what it reaches, not number
by number; once with the initial weights of its own layers, and once with such as Hopper's layers
have (Xavier's, for rectifiers).
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import datetime
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from torch import Tensor, nn

from hopper.bench.machine import commit, machine, tell_machine, versions
from hopper.bench.results import format_result
from hopper.bench.train_process import train_in_process
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit, import_graph
from hopper.graph.links import Links
from hopper.hetero.divide import divide_graph
from hopper.partition import PartitionedGraph
from hopper.whole_files import write_text

RUN_SECONDS = 1200.0
BATCH, NEGATIVES, HIDDEN, LEARNING_RATE = 1024, 64, 64, 0.01
LINKS_AT_ONCE = 4096
SIDES = {
    "one process": (1, "model_centric"),
    "zero_hop, 2 servers": (2, "zero_hop"),
    "cooperative, 2 servers": (2, "cooperative"),
}
PYG = {"PyG": False, "PyG, initial weights as ours": True}
"""by side, whether its initial weights are drawn as Hopper's layers draw them"""
METRICS = ("mrr", "hits@10")


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
CONFIG = f"""
[model]
layers = 2
hidden = {HIDDEN}
[sampler]
fanouts = [-1, -1]
[task]
num_negatives = {NEGATIVES}
[train]
learning_rate = {LEARNING_RATE}
more_metrics = ["hits@10"]
"""


def run_case(case: Case, seed: int, source: Path, work: Path, with_pyg: bool) -> dict[str, Any]:
    """Train every side on a graph. Return its scores and its edges."""
    folder = work / f"{case.data}-{seed}"
    split = RandomSplit(0.85, 0.05)
    case_options = dataclasses.replace(case.options, targets=(case.target,), split=split, seed=seed)
    import_graph("npy", str(source / case.data), folder / "graph", case_options)
    graph = GraphDirectory.open(folder / "graph")
    config = work / "config.toml"
    config.write_text(CONFIG)
    scores = {}
    for side, (servers, engine) in SIDES.items():
        parts = folder / f"parts-{servers}"
        if not parts.exists():
            divide_graph(graph, parts, servers)
        overrides = [
            f'--data.partitioned="{parts}"',
            *(f"--model.name={case.model}", f"--task.decoder={case.decoder}"),
            *(f"--train.engine={engine}", f"--train.batch_size={BATCH // servers}"),
            *(f"--train.epochs={case.epochs}", f"--train.seed={seed}"),
        ]
        run_dir = folder / side.replace(", ", "-").replace(" ", "-")
        summary = train_in_process(
            f"{case.data}, {side}, seed {seed}", config, run_dir, overrides, RUN_SECONDS
        )
        scores[side] = {name: summary["scores"]["test"][name] for name in METRICS}
        scores["a random order"] = {name: summary["baselines"]["test"][name] for name in METRICS}
    if with_pyg:
        for side, is_ours in PYG.items():
            scores[side] = train_pyg(case, graph, folder / "parts-1", seed, is_ours)
    return scores


def train_pyg(
    case: Case, graph: GraphDirectory, parts: Path, seed: int, is_ours: bool
) -> dict[str, float]:
    """Train the same model by PyG in this process. Return its test scores; parameters as of
    ``PYG``."""
    torch.manual_seed(seed)
    stored = PartitionedGraph.open(parts)
    schema = graph.schema
    (relation,) = schema.target_relations
    features = {
        name: torch.from_numpy(np.array(graph.features(name)))
        for name, kind in schema.node_types.items()
        if kind.feature_dim
    }
    edges = {}
    for stored_key in schema.relations:
        topology = stored.topology(stored_key)
        dst = np.repeat(np.arange(topology.in_degrees.size), np.diff(topology.indptr))
        ends = (
            stored.original_ids(stored_key.src)[topology.indices],
            stored.original_ids(stored_key.dst)[dst],
        )
        edges[tuple(stored_key)] = torch.from_numpy(np.stack(ends))
    counts = {name: kind.count for name, kind in schema.node_types.items()}
    reverses = [tuple(reverse) for reverse in stored.reverse_relations(relation)]
    model = PygModel(case, features, counts, [*edges], tuple(relation))
    if is_ours:
        model.draw_as_ours()
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE)
    links = {name: graph.links(name) for name in schema.splits}
    best, best_state = -1.0, copy.deepcopy(model.state_dict())
    train = torch.from_numpy(np.stack((links["train"].src, links["train"].dst)))
    for _ in range(case.epochs):
        model.train()
        for positions in torch.randperm(train.shape[1]).split(BATCH):
            batch = train[:, positions]
            kept_edges = leave_out(edges, tuple(relation), reverses, batch, counts)
            loss = model.loss(kept_edges, batch)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        score = rank(model, edges, links, "val")["mrr"]
        if score > best:
            best, best_state = score, copy.deepcopy(model.state_dict())
    model.load_state_dict(best_state)
    return rank(model, edges, links, "test")


Edges = dict[tuple[str, str, str], Tensor]


def leave_out(
    edges: Edges,
    relation: tuple[str, str, str],
    reverses: list[tuple[str, str, str]],
    batch: Tensor,
    counts: dict[str, int],
) -> Edges:
    """Return the edges without those that would reveal a batch of links."""
    kept_edges = dict(edges)
    for stored_relation, ends in (
        (relation, batch),
        *((reverse, batch.flip(0)) for reverse in reverses),
    ):
        width = counts[stored_relation[2]]
        is_left_out = torch.isin(
            kept_edges[stored_relation][0] * width + kept_edges[stored_relation][1],
            ends[0] * width + ends[1],
        )
        kept_edges[stored_relation] = kept_edges[stored_relation][:, ~is_left_out]
    return kept_edges


class PygModel(nn.Module):
    """GraphSAGE, or R-GCN as sums of means over relations, with PyG's convolutions."""

    def __init__(
        self,
        case: Case,
        features: dict[str, Tensor],
        counts: dict[str, int],
        relations: list[tuple[str, str, str]],
        target: tuple[str, str, str],
    ) -> None:
        from torch_geometric.nn import SAGEConv

        super().__init__()
        self.features, self.counts, self.target = features, counts, target
        self.typed = case.model == "rgcn"
        self.decoder = nn.Parameter(torch.ones(HIDDEN)) if case.decoder == "distmult" else None
        if not self.typed:
            (width,) = {rows.shape[1] for rows in features.values()}
            self.layers = nn.ModuleList(SAGEConv(width_in, HIDDEN) for width_in in (width, HIDDEN))
            return
        bare = [name for name in counts if name not in features]
        self.rows = nn.ParameterDict(
            {name: nn.Parameter(torch.randn(counts[name], HIDDEN) / 8) for name in bare}
        )
        self.inputs = nn.ModuleDict(
            {
                name: nn.Linear(features[name].shape[1] if name in features else HIDDEN, HIDDEN)
                for name in counts
            }
        )
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    **{
                        "__".join(relation): SAGEConv(HIDDEN, HIDDEN, root_weight=False, bias=False)
                        for relation in relations
                    },
                    **{name: nn.Linear(HIDDEN, HIDDEN) for name in counts},
                }
            )
            for _ in range(2)
        )

    def draw_as_ours(self) -> None:
        """Draw the initial weights of linear maps as Hopper's layers do."""
        from torch_geometric.nn import Linear

        for module in self.modules():
            if isinstance(module, nn.Linear | Linear):
                nn.init.xavier_uniform_(module.weight, nn.init.calculate_gain("relu"))
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def embed(self, edges: Edges) -> dict[str, Tensor]:
        """Compute the rows of all nodes by type, [nodes, width]."""
        if not self.typed:
            ((relation, pairs),) = edges.items()
            h = self.layers[0](self.features[relation[0]], pairs).relu()
            return {relation[0]: self.layers[1](h, pairs)}
        rows = {
            name: self.inputs[name](
                self.features[name] if name in self.features else self.rows[name]
            )
            for name in self.counts
        }
        for index, layer in enumerate(self.layers):
            new = {name: layer[name](type_rows) for name, type_rows in rows.items()}
            for relation, pairs in edges.items():
                ends = rows[relation[0]], rows[relation[2]]
                new[relation[2]] = new[relation[2]] + layer["__".join(relation)](ends, pairs)
            rows = new if index else {name: type_rows.relu() for name, type_rows in new.items()}
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
    source, _, destination = model.target
    scores = model.scores(rows[source], rows[destination])
    is_known = torch.zeros_like(scores, dtype=torch.bool)
    for split_links in links.values():
        is_known[torch.from_numpy(split_links.src), torch.from_numpy(split_links.dst)] = True
    split_links = links[split]
    src, dst = (
        torch.from_numpy(np.array(split_links.src)),
        torch.from_numpy(np.array(split_links.dst)),
    )
    ranks = []
    for table, gone, ends in ((scores, is_known, (src, dst)), (scores.T, is_known.T, (dst, src))):
        for at, true in zip(
            *(split_links.split(LINKS_AT_ONCE) for split_links in ends), strict=True
        ):
            own_scores = table[at, true].unsqueeze(1)
            others = table[at].masked_fill(gone[at], -torch.inf)
            higher, same = (others > own_scores).sum(1), (others == own_scores).sum(1)
            ranks.append(1 + higher + same / 2)
    ranks_of_links = torch.cat(ranks).double()
    return {
        "mrr": float((1 / ranks_of_links).mean()),
        "hits@10": float((ranks_of_links <= 10).double().mean()),
    }


def run(data: Path, out: Path, seeds: int, only: list[str], with_pyg: bool) -> dict[str, Any]:
    """Run the cases of some data sets. Write a page, a picture and ``result.json``."""
    console, rows = Console(), []
    with tempfile.TemporaryDirectory(prefix="link-prediction-") as work:
        for case in CASES:
            if case.data not in only:
                continue
            runs = []
            for seed in range(seeds):
                scores = run_case(case, seed, data, Path(work), with_pyg)
                runs.append({"seed": seed, "test": scores})
                console.print(f"{case.data} seed {seed}: {json.dumps(scores)}", highlight=False)
            names = {name: getattr(case, name) for name in ("data", "target", "model", "decoder")}
            rows.append({**names, "epochs": case.epochs, "runs": runs})
    result = {
        "schema": 1,
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "config": CONFIG,
        "batch_size": BATCH,
        "cases": rows,
    }
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "result.json", format_result(result))
    write_text(out / "README.md", page(result))
    draw(rows, out / "picture.webp")
    return result


def _over_seeds(row: dict[str, Any], side: str, metric: str) -> tuple[float, float]:
    scores = [run["test"][side][metric] for run in row["runs"]]
    return statistics.mean(scores), statistics.stdev(scores) if len(scores) > 1 else 0.0


def page(result: dict[str, Any]) -> str:
    """Write the page of a result, in Markdown."""
    rows = result["cases"]
    lines = [
        "# Link prediction on real graphs",
        "",
        f"{result['date']}, commit {result['commit']}; {tell_machine(result['machine'])}.",
        "",
        "Edges split 85/5/10 by seed; two layers, width 64, all neighbours but the edges of the "
        "batch; batches of 1,024 links, 64 negatives for each end; filtered ranks among all nodes, "
        "for both ends; mean and standard deviation over seeds.",
        "",
    ]
    for metric in METRICS:
        sides = list(rows[0]["runs"][0]["test"])
        lines += [f"## {metric}", "", "| graph | model | " + " | ".join(sides) + " |"]
        lines.append("|---|---|" + "---|" * len(sides))
        for row in rows:
            cells = [f"{m:.4f} ± {s:.4f}" for m, s in (_over_seeds(row, x, metric) for x in sides)]
            head = f"| {row['data']}, {row['target']} | {row['model']}, {row['decoder']} | "
            lines.append(head + " | ".join(cells) + " |")
        lines.append("")
    lines += ["![MRR by side](picture.webp)", ""]
    return "\n".join(lines)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw a bar for every graph and side."""
    figure = Figure(figsize=(9, 3.2), dpi=120)
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    sides = list(rows[0]["runs"][0]["test"])
    width = 0.8 / len(sides)
    for number, side in enumerate(sides):
        means = [_over_seeds(row, side, "mrr") for row in rows]
        positions = np.arange(len(rows)) + number * width
        axes.bar(positions, [m for m, _ in means], width, yerr=[s for _, s in means], label=side)
    axes.set_xticks(np.arange(len(rows)) + 0.4 - width / 2, [row["data"] for row in rows])
    axes.set_ylabel("test MRR")
    axes.legend(fontsize=8, ncols=len(sides), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    figure.tight_layout()
    figure.savefig(path)


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    names = [case.data for case in CASES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="data sets")
    parser.add_argument("--without-pyg", action="store_true")
    options = parser.parse_args()
    run(options.data, options.out, options.seeds, options.only, not options.without_pyg)
    return 0


if __name__ == "__main__":
    sys.exit(main())
