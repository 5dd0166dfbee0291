"""How attention begins: accuracy of GAT, R-GAT and HGT by the first values of their parameters.

Every side trains the same GAT with Adam on the same batches, and differs in the first values of the
weights and of the attention vectors alone: zeros, which weigh all neighbours alike at first, and
normal ones with the standard deviations of Xavier's rule, of DGL's and of PyG's layers (the maths
is the same). Typed models begin as Hopper has them (``drawn``), or with zeros for the vectors of
R-GAT's attention and the matrices of HGT's. A cell is a graph and a number of heads, whose widths
together are 64; a round is a seed, of the split too where a graph has none of its own. DIR of
``--data`` holds cora, ms_academic_cs, amazon_computers, tolokers, imdb_magnn and acm_heco in the
npy layout of docs/howto/import.md; the graphs of communities are presets. The accuracy is that of
the test split after the last epoch.
"""

from __future__ import annotations

import dataclasses
import math
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

import hopper
from benchmarks.rounds import Results, make_parser, positive
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit, write_tables
from hopper.graph.importers.npy import read_npy
from hopper.graph.schema import GraphSchema
from hopper.graph.synthesise import make
from hopper.models.gat import GAT, GATLayer
from hopper.models.hgt import HGT, RelationPartial
from hopper.models.relation_layer import RelationLayer
from hopper.models.relational import run_model
from hopper.models.rgat import RGAT
from hopper.partition import partition_graph
from hopper.pipeline import Batch

WIDTH = 64
"""of the hidden rows of all heads"""


class Case(NamedTuple):
    """A graph, and how it is trained."""

    name: str
    epochs: int
    fanout: int
    batch_size: int
    scale: float = 0.0
    """of a preset"""
    options: ImportOptions = ImportOptions()
    random_split: bool = False
    models: tuple[str, ...] = ("gat",)


_TYPED = ("rgat", "hgt")
CASES = (
    Case("cora", 60, -1, 1024, options=ImportOptions(row_normalize=True)),
    Case("ms_academic_cs", 20, -1, 1024, options=ImportOptions(row_normalize=True),
         random_split=True),
    Case("amazon_computers", 60, -1, 1024,
         options=ImportOptions(symmetrize=True, row_normalize=True), random_split=True),
    Case("tolokers", 10, 10, 1024, options=ImportOptions(scale="standard")),
    Case("arxiv-like", 10, 10, 128, scale=0.05),
    Case("products-like", 10, 10, 128, scale=0.01),
    Case("imdb_magnn", 20, -1, 128, options=ImportOptions(row_normalize=True),
         models=_TYPED),
    Case("acm_heco", 20, -1, 128, options=ImportOptions(row_normalize=True, add_reverse="all"),
         models=_TYPED),
    Case("mag-like", 10, 10, 128, scale=0.005, models=_TYPED),
)  # fmt: skip


def _start(layer: GATLayer, gain: float, attention: Callable[[int, int], float]) -> None:
    """Draw a layer's parameters: weights by Xavier's rule with a gain, attention vectors with the
    standard deviation that a function of heads and width returns."""
    with torch.no_grad():
        nn.init.xavier_normal_(layer.linear.weight, gain)
        for vector in (layer.attention_src, layer.attention_dst):
            nn.init.normal_(vector, std=attention(layer.heads, layer.width))


_RELU = math.sqrt(2)
Start = Callable[[Any], None]
"""sets the parameters of a layer"""
SIDES: dict[str, Start] = {
    "zeros": lambda layer: None,
    # Vectors of all heads as one matrix.
    "xavier": lambda layer: _start(
        layer, _RELU, lambda heads, width: _RELU * math.sqrt(2 / (heads + width))
    ),
    # nn/pytorch/conv/gatconv.py: attention vectors have the shape (1, heads, width).
    "dgl": lambda layer: _start(
        layer, _RELU, lambda heads, width: _RELU * math.sqrt(2 / (width * (heads + 1)))
    ),
    # nn/conv/gat_conv.py: glorot's rule for heads and width; it draws uniformly.
    "pyg": lambda layer: _start(layer, 1.0, lambda heads, width: math.sqrt(2 / (heads + width))),
}


def _draw_attention(layer: RelationLayer) -> None:
    """Draw vectors (R-GAT) by Xavier's rule with ReLU's gain, and matrices (HGT) without."""
    for aggregation in layer.aggregations:
        if isinstance(aggregation, RelationPartial):
            for matrix in aggregation.attention:
                nn.init.xavier_uniform_(matrix)
        else:
            nn.init.xavier_normal_(aggregation.attention_src, _RELU)
            nn.init.xavier_normal_(aggregation.attention_dst, _RELU)


TYPED_SIDES: dict[str, Start] = {"drawn": _draw_attention, "zeros": lambda layer: None}


def make_parts(case: Case, seed: int, data: Path, folder: Path) -> Path:
    """Make the partitioned directory of a case and a seed, with one server."""
    if case.scale:
        make(case.name, folder / "graph", scale=case.scale, seed=seed)
    else:
        split = RandomSplit.parse("random:20:30") if case.random_split else None
        options = dataclasses.replace(case.options, split=split, seed=seed)
        write_tables(read_npy(data / case.name), folder / "graph", options)
    partition_graph(GraphDirectory.open(folder / "graph"), folder / "parts", 1, "random")
    return folder / "parts"


def build(name: str, schema: GraphSchema, heads: int) -> nn.Module:
    """Build a model of two layers; node types without features have one."""
    target = schema.target_type()
    classes = schema.labels[target].classes
    widths = {name: kind.feature_dim or 1 for name, kind in schema.node_types.items()}
    if name == "gat":
        return GAT(
            in_dim=widths[target], out_dim=classes, layers=2, hidden=WIDTH // heads,
            heads=heads, dropout=0.5,
        )  # fmt: skip
    last = tuple(relation for relation in schema.relations if relation.dst == target)
    reads = [(tuple(schema.relations), tuple(sorted(widths))), (last, (target,))]
    sizes: dict[str, Any] = {"out_dim": classes, "hidden": WIDTH, "heads": heads, "dropout": 0.5}
    model_class = {"rgat": RGAT, "hgt": HGT}[name]
    return model_class(target=target, inputs=widths, reads=reads, **sizes)


def score(model: nn.Module, batch: Batch) -> Tensor:
    """Compute the logits of a batch's roots."""
    blocks = batch.typed_blocks()
    ones = {name: torch.ones(count, 1) for name, count in blocks[0].sources.items()}
    return run_model(model, blocks, {**ones, **batch.features})


def train(
    kind: str, case: Case, heads: int, seed: int, parts: Path, sides: Mapping[str, Start]
) -> Iterator[tuple[str, float]]:
    """Train every side on the same batches; yield its test accuracy."""
    fanouts = [case.fanout] * 2
    with (
        hopper.connect(parts) as graph,
        hopper.loader(graph, fanouts, batch_size=case.batch_size, seed=seed) as batches,
        hopper.loader(graph, [-1, -1], batch_size=1024, roots="test", shuffle=False) as test,
    ):
        models = {}
        for name, start in sides.items():
            torch.manual_seed(seed)
            models[name] = build(kind, graph.graph.schema, heads)
            for layer in models[name].get_submodule("layers").children():
                start(layer)
        optimizers = {
            name: torch.optim.Adam(model.parameters(), lr=0.01, weight_decay=5e-4)
            for name, model in models.items()
        }
        for _ in range(case.epochs):
            for batch in batches:
                for name, model in models.items():
                    optimizers[name].zero_grad()
                    logits = score(model, batch)
                    functional.cross_entropy(logits, torch.as_tensor(batch.labels)).backward()
                    optimizers[name].step()
        right, count = dict.fromkeys(models, 0), 0
        for batch in test:
            labels = torch.as_tensor(batch.labels)
            count += labels.numel()
            for name, model in models.items():
                with torch.no_grad():
                    logits = score(model.eval(), batch)
                right[name] += int((logits.argmax(1) == labels).sum())
        yield from ((name, right[name] / count) for name in models)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__, rounds=10)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--only", metavar="NAME,...", help="graphs; default: all")
    parser.add_argument("--threads", type=positive, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    names = [case.name for case in CASES]
    only = options.only.split(",") if options.only else names
    if unknown := sorted(set(only) - set(names)):
        parser.error(f"--only: expected some of {names}, given {unknown}")
    results = Results("attention-start", options.out)
    for case in (case for case in CASES if case.name in only):
        sides = TYPED_SIDES if case.models is _TYPED else SIDES
        found: dict[tuple[str, int], list[dict[str, float]]] = {
            (model, heads): [] for model in case.models for heads in (1, 8)
        }
        for seed in range(options.rounds):
            with tempfile.TemporaryDirectory(prefix="attention-start-") as work:
                parts = make_parts(case, seed, options.data, Path(work))
                for (kind, heads), runs in found.items():
                    runs.append(dict(train(kind, case, heads, seed, parts, sides)))
        for (kind, heads), runs in found.items():
            measured = {side: {"test accuracy": np.array([[run[side]] for run in runs])}
                        for side in sides}  # fmt: skip
            model = f", {kind}" if sides is TYPED_SIDES else ""
            cell = f"{case.name}{model}, {heads} {'head' if heads == 1 else 'heads'}"
            results.add(cell, measured)
    return 0


if __name__ == "__main__":
    sys.exit(main())
