"""Decoders, losses and metrics of links: their formulas, and that all candidates at once score as
single pairs do."""

import math
import re

import pytest
import torch
from torch import Tensor

from hopper.config import Config, make_config
from hopper.errors import ConfigError
from hopper.graph.schema import EdgeType, GraphSchema, NodeType, Relation
from hopper.models.losses import LINK_LOSSES, check_loss
from hopper.models.metrics import LINK_METRICS, check_metric
from hopper.tasks import DECODERS, SIDES, Decoder, Target, make_decoder

WIDTH, RELATIONS = 6, 3
SCHEMA = GraphSchema(
    name="triples",
    node_types={"entity": NodeType(9)},
    relations={Relation("entity", f"r{i}", "entity"): EdgeType(4) for i in range(RELATIONS)},
    target=Relation("entity", "r0", "entity"),
    also=(Relation("entity", "r1", "entity"), Relation("entity", "r2", "entity")),
)


def config(**task: object) -> Config:
    return make_config({"data": {"partitioned": "p"}, "task": task})


def make(name: str, classes: int = 0, **options: object) -> Decoder:
    """Make a decoder of links, or of edges with labels if there are classes."""
    torch.manual_seed(1)
    target = Target("link", "link", WIDTH, WIDTH)
    if classes:
        target = Target("edge", "class", WIDTH, classes)
    return make_decoder(config(decoder=name, decoder_options=options), SCHEMA, target).double()


def examples(count: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(2)
    heads, tails = torch.randn(2, count, WIDTH, dtype=torch.float64, generator=generator)
    return heads, torch.arange(count) % RELATIONS, tails


@pytest.mark.parametrize("name", DECODERS)
def test_all_candidates_score_as_pairs_do(name):
    decoder, (heads, relations, tails) = make(name), examples()
    candidates = examples(7)[0]
    for side in SIDES:
        known = heads if side == "tail" else tails
        scores = decoder.against_all(known, relations, candidates, side)
        for link in range(len(known)):
            for candidate, row in enumerate(candidates):
                ends = (known[link], row) if side == "tail" else (row, known[link])
                head, tail = (end[None, None] for end in ends)
                alone = decoder(head, relations[link : link + 1], tail)
                torch.testing.assert_close(scores[link, candidate], alone[0, 0])


def test_formulas():
    heads, relations, tails = examples()
    h, t = (torch.complex(*rows.chunk(2, -1)) for rows in (heads, tails))

    def check(decoder: Decoder, expected: Tensor) -> None:
        scores = decoder(heads[:, None], relations, tails[:, None])[:, 0]
        torch.testing.assert_close(scores, expected)

    decoder = make("distmult")
    check(decoder, (heads * decoder.relations[relations] * tails).sum(1))
    decoder = make("complex")
    r = torch.complex(*decoder.relations[relations].chunk(2, -1))
    check(decoder, (h * r * t.conj()).sum(1).real)
    decoder = make("rotate", margin=9.0)
    angles = decoder.relations[relations]
    turned = h * torch.polar(torch.ones_like(angles), angles)
    check(decoder, 9.0 - (turned - t).abs().sum(1))


def test_a_pair_that_fits_perfectly_has_a_gradient():
    decoder = make("rotate")
    rows = torch.zeros(1, 1, WIDTH, dtype=torch.float64, requires_grad=True)
    decoder(rows, torch.tensor([0]), rows).sum().backward()
    assert rows.grad is not None
    assert rows.grad.isfinite().all()


def test_formulas_of_edges_with_labels():
    heads, relations, tails = examples()
    decoder = make("bilinear", 4, bases=3)
    for edge, relation in enumerate(relations):
        for label in range(4):
            weights = decoder.weights[relation, :, label]
            matrix = (weights[:, None, None] * decoder.bases).sum(0)
            alone = heads[edge] @ matrix @ tails[edge]
            score = decoder(heads, relations, tails)[edge, label]
            torch.testing.assert_close(score, alone)
    decoder = make("mlp", 2)
    inner = torch.relu(decoder.head(heads) + decoder.tail(tails))
    for edge, relation in enumerate(relations):
        alone = inner[edge] @ decoder.last[relation] + decoder.bias[relation]
        torch.testing.assert_close(decoder(heads, relations, tails)[edge], alone)
    assert decoder(heads[:0], relations[:0], tails[:0]).shape == (0, 2)


class Wide(Decoder):
    """A wrong decoder: it sums over the candidates."""

    def __init__(self, *, width: int, relations: int) -> None:
        super().__init__()

    def forward(self, heads: Tensor, relations: Tensor, tails: Tensor) -> Tensor:
        return (heads * tails).sum((1, 2))


def test_wrong_decoders_are_refused_before_a_run():
    with pytest.raises(ConfigError, match=re.escape("decoder: expected auto, dot, distmult")):
        config(decoder="dott")
    with pytest.raises(ConfigError, match="expected something of each pair by itself, of shapes"):
        make(f"{__name__}:Wide")
    with pytest.raises(ConfigError, match="even width, got 7"):
        make_decoder(config(decoder="complex"), SCHEMA, Target("link", "link", 7, 7))
    with pytest.raises(ConfigError, match=re.escape("task.decoder_options.margin")):
        make("dot", margin=1.0)


SCORES = torch.tensor([[2.0, 1.0, 5.0, -1.0], [0.0, 3.0, 0.5, 0.25]], dtype=torch.float64)
# The second candidate of the first link does not count.
LABELS = torch.tensor([[1.0, 0.0, -1.0, 0.0], [1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)


def softplus(x: float) -> float:
    return math.log1p(math.exp(x))


EXPECTED = {
    "cross_entropy": [
        math.log(sum(map(math.exp, (2, 1, -1)))) - 2,
        math.log(sum(map(math.exp, (0, 3, 0.5, 0.25)))),
    ],
    "binary_cross_entropy": [
        softplus(-2) + (softplus(1) + softplus(-1)) / 2,
        softplus(0) + (softplus(3) + softplus(0.5) + softplus(0.25)) / 3,
    ],
    "margin": [0.0, (4 + 1.5 + 1.25) / 3],
    "bpr": [(softplus(-1) + softplus(-3)) / 2, (softplus(3) + softplus(0.5) + softplus(0.25)) / 3],
}


@pytest.mark.parametrize("name", LINK_LOSSES)
def test_losses(name):
    loss = LINK_LOSSES[name](classes=8)
    check_loss("train.loss", name, loss, "link", 8)
    expected = torch.tensor(EXPECTED[name], dtype=torch.float64)
    torch.testing.assert_close(loss.root_losses(SCORES, LABELS), expected)


@pytest.mark.parametrize("name", LINK_LOSSES)
def test_a_link_without_negatives_has_a_finite_loss(name):
    scores = torch.tensor([[1.0, 4.0]], requires_grad=True)
    loss = LINK_LOSSES[name](classes=8).root_losses(scores, torch.tensor([[1.0, -1.0]]))
    loss.sum().backward()
    assert loss.isfinite().all()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()
    assert scores.grad[0, 1] == 0


def test_metrics_are_means_over_links():
    ranks = torch.tensor([[1.0], [2.5], [10.0], [11.0]], dtype=torch.float64)
    expected = {"mrr": (1 + 0.4 + 0.1 + 1 / 11) / 4, "hits@1": 0.25, "hits@3": 0.5, "hits@10": 0.75}
    for name, kind in LINK_METRICS.items():
        metric = kind(classes=8)
        check_metric("train.metric", name, metric, "link", 8)
        sums = metric.sums(ranks, torch.ones_like(ranks))  # type: ignore[union-attr]
        assert metric.value(sums) == pytest.approx(expected[name])  # type: ignore[union-attr]
