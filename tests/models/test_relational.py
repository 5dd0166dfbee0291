"""Typed models against the papers' formulas, written out destination by destination."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import Module, functional

from hopper.errors import ConfigError, RequestError
from hopper.graph import Relation, build_topology
from hopper.graph.block import Block, Edges, Nodes, TypedBlocks
from hopper.micrograph.sample import NeighborSampler
from hopper.models import build_typed_model
from hopper.models.combination import JointSoftmax, MeanOfPresentRelations, MeanOfRelations
from hopper.models.hgt import HGTLayer, RelationPartial
from hopper.models.relation_layer import RelationLayer
from hopper.models.relational import HGNN
from hopper.models.rgat import RelationAttention
from hopper.models.rgcn import RGCNLayer
from hopper.ops import drop_rows

COUNTS = {"author": 6, "paper": 9}
INPUTS = {"author": 3, "paper": 5}
CITES = Relation("paper", "cites", "paper")
WRITES = Relation("author", "writes", "paper")
BY = Relation("paper", "by", "author")
EDGES = {
    # Paper 8 has no in-edge at all, paper 7 none from authors, and one edge is there twice.
    CITES: [(0, 1), (2, 1), (2, 1), (3, 0), (4, 5), (1, 5), (5, 7), (7, 7)],
    WRITES: [(0, 0), (1, 0), (1, 1), (2, 2), (3, 3), (4, 5), (5, 5), (0, 6)],
    BY: [(0, 0), (0, 1), (1, 1), (2, 2), (3, 3), (5, 4)],
}
EVERY = (tuple(sorted(EDGES)), tuple(sorted(COUNTS)))
ROOTS = ((CITES, WRITES), ("paper",))

Rows = dict[str, Tensor]


def full_blocks(layers: int) -> tuple[list[TypedBlocks], list[int]]:
    """Blocks of all papers with all neighbours, and the papers in order of rows."""
    sampler = NeighborSampler(
        {
            relation: build_topology(
                np.array([u for u, _ in edges]),
                np.array([v for _, v in edges]),
                COUNTS[relation.src],
                COUNTS[relation.dst],
            )
            for relation, edges in EDGES.items()
        },
        {name: np.arange(count) for name, count in COUNTS.items()},
        "paper",
        [-1] * layers,
        seed=1,
    )
    subgraph = sampler.sample(np.array([8, 1, 0, 5, 7, 2, 3, 6, 4]), 0, 0)
    return subgraph.typed_blocks(), subgraph.nodes["paper"].tolist()


def make_features() -> Rows:
    generator = torch.Generator().manual_seed(2)
    return {
        name: torch.randn(count, INPUTS[name], generator=generator, dtype=torch.float64)
        for name, count in COUNTS.items()
    }


def make_model(
    name: str, layers: int = 2, *, inputs: dict[str, int] = INPUTS, **options: Any
) -> HGNN:
    reads = [EVERY] * (layers - 1) + [ROOTS]
    options = {"seed": 3, "dtype": torch.float64} | options
    return build_typed_model(
        name, target="paper", inputs=inputs, reads=reads, out_dim=4, hidden=8, **options
    ).eval()


Formula = Callable[[RelationLayer, Module, Rows, str, int], Tensor]
"""the new row of a node, given its layer, its type's update, all rows, its type and its number"""


def compute_by_formula(model: HGNN, formula: Formula) -> Tensor:
    """[papers, 4]: the model on the whole graph, layer by layer."""
    h = {
        name: linear(make_features()[name])
        for name, linear in zip(model.types, model.inputs, strict=True)
    }
    for layer in model.layers:
        assert isinstance(layer, RelationLayer)
        h = h | {
            name: torch.stack([formula(layer, update, h, name, v) for v in range(COUNTS[name])])
            for name, update in zip(layer.types, layer.updates, strict=True)
        }
    logits: Tensor = model.head(h["paper"])
    return logits


def neighbours(relation: Relation, node: int) -> list[int]:
    return [u for u, v in EDGES[relation] if v == node]


def relations_into(layer: RelationLayer, node_type: str) -> list[Relation]:
    return [relation for relation in layer.relations if relation.dst == node_type]


def rgcn_row(layer: RelationLayer, update: Module, h: Rows, node_type: str, node: int) -> Tensor:
    total = update.linear(h[node_type][node])  # type: ignore[operator]
    for relation in relations_into(layer, node_type):
        sources = neighbours(relation, node)
        weight = layer.aggregation(relation).weight  # type: ignore[union-attr]
        for u in sources:
            row = h[relation.src][u : u + 1]
            total = total + weight(row)[0] / len(sources)  # type: ignore[operator]
    return total if update.activation is None else total.relu()


def rgat_row(layer: RelationLayer, update: Module, h: Rows, node_type: str, node: int) -> Tensor:
    total = update.linear(h[node_type][node])  # type: ignore[operator]
    for relation in relations_into(layer, node_type):
        attention = layer.aggregation(relation)
        assert isinstance(attention, RelationAttention)
        sources = neighbours(relation, node)
        heads = []
        for head in range(attention.heads if sources else 0):
            columns = slice(head * attention.width, (head + 1) * attention.width)
            z = attention.linear(h[relation.src][sources])[:, columns]
            z_dst = attention.linear(h[node_type][node])[columns]
            logits = z @ attention.attention_src[head] + z_dst @ attention.attention_dst[head]
            heads.append(functional.leaky_relu(logits, 0.2).softmax(0) @ z)
        if heads:
            total = total + torch.cat(heads)
    return total if update.activation is None else total.relu()


def hgt_row(layer: RelationLayer, update: Module, h: Rows, node_type: str, node: int) -> Tensor:
    assert isinstance(layer, HGTLayer)
    heads = []
    for head in range(2):
        columns = slice(head * 4, (head + 1) * 4)
        logits, messages = [], []
        for relation in relations_into(layer, node_type):
            partial = layer.aggregation(relation)
            assert isinstance(partial, RelationPartial)
            query = partial.query(h[node_type][node])[columns]
            for u in neighbours(relation, node):
                key, value = partial.key_value(h[relation.src][u]).split(8)
                score = (key[columns] @ partial.attention[head]) @ query
                logits.append(score * partial.prior[head] / math.sqrt(4))
                messages.append(value[columns] @ partial.message[head])
        if logits:
            heads.append(torch.stack(logits).softmax(0) @ torch.stack(messages))
        else:
            heads.append(torch.zeros(4, dtype=torch.float64))
    gate = torch.sigmoid(update.skip)  # type: ignore[arg-type]
    update_row = update.linear(functional.gelu(torch.cat(heads)))  # type: ignore[operator]
    return gate * update_row + (1 - gate) * h[node_type][node]


@pytest.mark.parametrize(
    ("name", "options", "formula", "layers"),
    [
        ("rgcn", {}, rgcn_row, 1),
        ("rgcn", {}, rgcn_row, 3),
        ("rgcn", {"bases": 2}, rgcn_row, 2),
        ("rgcn", {"diagonal_blocks": 2}, rgcn_row, 2),
        ("rgat", {"heads": 2}, rgat_row, 2),
        ("hgt", {"heads": 2}, hgt_row, 2),
    ],
)
def test_models_follow_their_formulas(name, options, formula, layers):
    model = make_model(name, layers, **options)
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases and priors that start alike would hide which is used where.
            parameter.add_(torch.randn_like(parameter) * 0.1)
    blocks, papers = full_blocks(layers)
    rows = make_features()
    subgraph_rows = {
        node_type: rows[node_type][blocks[0].nodes[node_type].original]
        for node_type in COUNTS
        if blocks[0].sources[node_type]
    }
    logits = model(blocks, subgraph_rows)
    expected = compute_by_formula(model, formula)[papers]
    assert torch.allclose(logits, expected, rtol=1e-11, atol=1e-12)


def test_matrices_of_bases_are_shared_and_saved_once():
    model = make_model("rgcn", bases=2)
    names = [name for name in model.state_dict() if "matrices" in name]
    assert names == ["layers.0.bases.matrices", "layers.1.bases.matrices"]
    layer = model.layers[0]
    assert isinstance(layer, RGCNLayer)
    assert layer.bases is not None
    assert layer.bases.matrices.shape == (2, 8, 8)
    full = sum(p.numel() for p in make_model("rgcn", layers=5).parameters())
    assert sum(p.numel() for p in make_model("rgcn", layers=5, bases=1).parameters()) < full


def test_blocks_of_a_diagonal_are_a_matrix_with_zeros():
    layer = make_model("rgcn", diagonal_blocks=4).layers[0]
    assert isinstance(layer, RelationLayer)
    weight = layer.aggregation(CITES).weight
    dense = torch.block_diag(*weight.matrices)  # type: ignore[union-attr,misc]
    rows = torch.randn(3, 8, dtype=torch.float64)
    assert torch.allclose(weight(rows), rows @ dense)  # type: ignore[operator]


def test_a_model_without_input_weights_equals_one_with_identity_weights():
    inputs = {"author": 8, "paper": 8}
    identity_model = make_model("rgcn", inputs=inputs)
    bare_model = make_model("rgcn", inputs=inputs, input_weights=False)
    bare_parameters = dict(bare_model.named_parameters())
    layer = bare_model.relation_layer(0)
    first_layer_names = [name for name, _ in layer.named_parameters()]
    assert first_layer_names == ["updates.0.bias", "updates.1.bias"]
    with torch.no_grad():
        for parameter in bare_parameters.values():
            parameter.add_(torch.randn_like(parameter) * 0.1)
        for name, parameter in identity_model.named_parameters():
            if name in bare_parameters:
                parameter.copy_(bare_parameters[name])
            elif parameter.dim() == 2:
                parameter.copy_(torch.eye(8))
            elif name.startswith("inputs."):
                parameter.zero_()
            else:
                parameter.copy_(bare_parameters[name.replace("linear.", "")])
    blocks, _ = full_blocks(2)
    x = {name: torch.randn(n, 8, dtype=torch.float64) for name, n in blocks[0].sources.items()}
    assert torch.allclose(bare_model(blocks, x), identity_model(blocks, x), rtol=1e-12, atol=1e-12)


def test_a_joint_softmax_of_large_and_missing_logits():
    logits = torch.tensor([900.0, -900.0], dtype=torch.float64)
    messages = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
    # One head, one destination whose relations have an edge each, one that has none.
    parts = []
    for logit, message in zip(logits, messages, strict=True):
        with_edge = torch.cat((logit.view(1), torch.ones(1), message))
        without_edge = torch.tensor([-math.inf, 0.0, 0.0, 0.0])
        parts.append(torch.stack((with_edge, without_edge)).unsqueeze(1).requires_grad_())
    combined = JointSoftmax()(parts)
    assert combined[0, 0].tolist() == [1.0, 2.0]
    assert combined[1, 0].tolist() == [0.0, 0.0]
    combined.sum().backward()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in parts)


@pytest.mark.parametrize("present_only", [False, True])
def test_a_mean_of_relations_is_the_same_when_parts_are_merged_first(present_only):
    # Three relations into three destinations; a destination has no edge of some of them.
    degrees = torch.tensor([[2, 0, 1], [1, 0, 0], [3, 0, 4]])
    rows = torch.randn(3, 3, 5, dtype=torch.float64)
    combination = MeanOfPresentRelations() if present_only else MeanOfRelations()
    parts = []
    for in_degrees, aggregated in zip(degrees, rows, strict=True):
        indptr = np.concatenate(([0], np.cumsum(in_degrees.numpy())))
        edges = Edges.from_arrays(indptr, np.zeros(indptr[-1], np.int64), num_src=1)
        ends = (Nodes("paper", torch.arange(count), None) for count in (1, 3))
        block = Block(1, 3, edges.indptr, edges.indices, CITES, edges.indices, *ends)
        parts.append(combination.partial(block, aggregated))
    is_counted = (degrees > 0).double() if present_only else torch.ones(3, 3, dtype=torch.float64)
    expected = (rows * is_counted[..., None]).sum(0) / is_counted.sum(0).clamp(min=1)[:, None]
    assert torch.allclose(combination(parts), expected)
    assert torch.allclose(combination([combination.merge(parts[:2]), parts[2]]), expected)


def test_dropout_is_keyed_by_type_and_node():
    model = make_model("rgcn", 1, dropout=0.5, dtype=torch.float32).train()
    (hop,), _ = full_blocks(1)
    masks = model.drop_all(0, hop, {name: torch.ones(hop.sources[name], 64) for name in COUNTS})
    papers = dict(zip(hop.nodes["paper"].original.tolist(), masks["paper"], strict=True))
    authors = dict(zip(hop.nodes["author"].original.tolist(), masks["author"], strict=True))
    assert not torch.equal(papers[0], authors[0])
    # Masks do not depend on the other types of the model (docs/inside/dropout.md).
    ones = torch.ones(hop.sources["paper"], 64)
    assert torch.equal(masks["paper"], drop_rows(hop.nodes["paper"], ones, 0.5, 0))


def test_inputs_that_do_not_fit_are_named():
    model = make_model("rgcn")
    blocks, _ = full_blocks(2)
    with pytest.raises(RequestError, match="RGCN: expected 2 hops, one per layer; given 1"):
        model(blocks[:1], make_features())
    with pytest.raises(RequestError, match=r"RGCN: author: expected rows \[6, 3\], given \[6, 5\]"):
        model(blocks, {"author": torch.zeros(6, 5), "paper": torch.zeros(9, 5)})
    divisor = r"model\.heads: expected a divisor of the width 8"
    for name, options, text in (
        ("hgt", {"heads": 3}, divisor),
        ("rgat", {"heads": 5}, divisor),
        ("sehgnn", {"layers": 1, "heads": 3}, divisor),
        ("rgcn", {"diagonal_blocks": 3}, r"model\.diagonal_blocks: expected a divisor"),
        ("rgat", {"bases": 2}, r"model\.bases: rgat does not take it"),
        ("gin", {}, r"model\.name: expected rgcn, .*, nars or .*; given 'gin'"),
        ("hgt", {"heads": 0}, r"model\.heads: expected at least 1; given 0"),
    ):
        with pytest.raises(ConfigError, match=text):
            make_model(name, **options)
