"""Counter-based dropout: the specification's vectors, both implementations, statistics."""

import itertools
import json
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hopper.errors import ConfigError, RequestError
from hopper.graph.block import Nodes
from hopper.graph.schema import Relation
from hopper.ops import RowPart, StoredRows, counter_mask, drop_edges, drop_rows, drop_self
from hopper.ops.counter_mask import (
    Site,
    drop,
    drop_threshold,
    keep_mask,
    row_keys,
    site_key,
)
from hopper.ops.dropout import node_type_key
from tests.docs.markdown_pages import read_code

from .conftest import random_leaf

DOCUMENT = Path(__file__).parents[2] / "docs" / "inside" / "dropout.md"
MASK64 = (1 << 64) - 1


def read_vectors():
    [text] = read_code(DOCUMENT, "json")
    return json.loads(text)


def to_unsigned(keys):
    return [key & MASK64 for key in keys.tolist()]


@pytest.mark.parametrize("vector", read_vectors())
def test_vectors_of_the_specification(kernels, vector):
    type_name = vector["type"]
    type_key = (
        node_type_key(type_name) if isinstance(type_name, str) else Relation(*type_name).draw_key()
    )
    assert type_key == int(vector["type_key"], 16)
    site = Site(vector["site"])
    key = site_key(int(vector["iteration_key"], 16), vector["layer"], site, type_key)
    assert key == int(vector["site_key"], 16)
    words = torch.tensor([row["words"] for row in vector["rows"]])
    keys = row_keys(key, *words.T)
    assert to_unsigned(keys) == [int(row["row_key"], 16) for row in vector["rows"]]
    assert drop_threshold(vector["p"]) == vector["threshold"]
    width = len(vector["rows"][0]["kept"])
    expected = torch.tensor([[c == "1" for c in row["kept"]] for row in vector["rows"]])
    assert torch.equal(keep_mask(keys, width, vector["threshold"]), expected)
    dropped = drop(torch.ones(len(keys), width, dtype=torch.float64), keys, vector["threshold"])
    scale = 1 / (1 - vector["threshold"] / 65536)
    assert torch.equal(dropped, expected.double() * scale)
    for row, row_key in zip(vector["rows"], keys, strict=True):
        # A lane is kept for exactly the thresholds up to its value.
        for j, lane in enumerate(row["lanes"]):
            assert keep_mask(row_key.view(1), width, lane)[0, j]
            assert not keep_mask(row_key.view(1), width, lane + 1)[0, j]


def test_vectors_cover_every_site():
    assert {vector["site"] for vector in read_vectors()} == set(Site)


@settings(
    deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    key=st.integers(0, MASK64),
    words=st.lists(st.tuples(st.integers(0, 2**63 - 1), st.integers(0, 2**40)), max_size=9),
    width=st.integers(1, 21),
    threshold=st.integers(1, 65535),
    double=st.booleans(),
)
def test_kernels_agree_with_torch_bit_for_bit(kernels, key, words, width, threshold, double):
    first = torch.tensor([a for a, _ in words], dtype=torch.int64)
    second = torch.tensor([b for _, b in words], dtype=torch.int64)
    signed = counter_mask._to_signed
    start = torch.full_like(first, signed(key))
    row_keys_expected = counter_mask._absorb(start, first)
    assert torch.equal(row_keys(key, first), row_keys_expected)
    keys = row_keys(key, first, second)
    assert torch.equal(keys, counter_mask._absorb(row_keys_expected, second))
    x = torch.randn(len(words), width, dtype=torch.float64 if double else torch.float32)
    is_kept = keep_mask(keys, width, threshold)
    zero, scale = torch.zeros((), dtype=x.dtype), 1 / (1 - threshold / 65536)
    expected = torch.where(is_kept, x * scale, zero)
    assert torch.equal(drop(x, keys, threshold), expected)


def test_half_precision(kernels):
    keys = row_keys(3, torch.arange(50))
    x = torch.randn(50, 7)
    expected = torch.where(keep_mask(keys, 7, 32768), x.bfloat16() * 2, 0.0)
    assert torch.equal(drop(x.bfloat16(), keys, 32768), expected)


def test_backward_is_the_same_mask(make_block):
    block = make_block([[0, 1], [2]], 4, key=99)
    for function, shape in (
        (lambda x: drop_rows(block.src, x, 0.4, 1), (4, 3, 2)),
        (lambda x: drop_rows(block.src, x.T, 0.4, 1), (2, 4)),
        (lambda x: drop_edges(block, x, 0.4, 1), (3, 2)),
        (lambda x: drop_self(block, x, 0.4, 1), (2, 2)),
    ):
        assert torch.autograd.gradcheck(function, random_leaf(*shape))


def test_a_row_s_mask_does_not_depend_on_the_other_rows(make_block):
    x = torch.ones(6, 10)
    rows = drop_rows(make_block([[0]], 6, key=7).src, x, 0.5, 0)
    smaller_block = make_block([[0]], 3, key=7)
    smaller_block.src.original = torch.tensor([31, 3, 17])
    assert torch.equal(drop_rows(smaller_block.src, x[:3], 0.5, 0), rows[[4, 0, 2]])


def test_an_edge_s_mask_does_not_depend_on_the_other_edges(make_block):
    block = make_block([[0, 1, 2], [1, 2]], 3, key=7)
    edges = drop_edges(block, torch.ones(5, 4), 0.5, 0)
    smaller_block = make_block([[2, 0]], 3, key=7)
    smaller_block.dst.original = block.dst.original[1:]
    assert torch.equal(drop_edges(smaller_block, torch.ones(2, 4), 0.5, 0), edges[3:])
    smaller_block.positions = smaller_block.positions + 1
    assert not torch.equal(drop_edges(smaller_block, torch.ones(2, 4), 0.5, 0), edges[3:])


def test_masks_differ_by_site_layer_iteration_and_type(make_block):
    # One element: a block whose rows, edges and destinations have the same words.
    x = torch.ones(2, 64)

    def mask(key=1, layer=0, site=drop_rows, node_type="paper"):
        block = make_block([[0], [0]], 2, key=key)
        block.src.node_type = node_type
        return site(block.src if site is drop_rows else block, x, 0.5, layer)

    changes = {"key": 2}, {"layer": 1}, {"site": drop_edges}, {"site": drop_self}
    variants = [mask(**change) for change in ({}, *changes, {"node_type": "author"})]
    for variant, other in itertools.combinations(variants, 2):
        assert not torch.equal(variant, other)
    assert torch.equal(mask(), variants[0])


@pytest.mark.parametrize("p", [0.05, 0.5, 0.9])
def test_kept_share_and_independence(p):
    keys = row_keys(site_key(5, 0, Site.ROWS, 1), torch.arange(20_000))
    is_kept = keep_mask(keys, 32, drop_threshold(p)).double()
    # Six standard deviations.
    assert abs(is_kept.mean() - (1 - p)) < 6 * (p * (1 - p) / is_kept.numel()) ** 0.5
    columns = torch.corrcoef(is_kept.T) - torch.eye(32)
    assert columns.abs().max() < 6 / 20_000**0.5
    rows = torch.stack([is_kept[:-1].flatten(), is_kept[1:].flatten()])
    assert abs(torch.corrcoef(rows)[0, 1]) < 0.01


def test_zero_is_free_and_bad_probabilities_are_refused(make_block):
    block = make_block([[0]], 1)
    x = torch.randn(1, 3)
    for site in (drop_rows, drop_edges, drop_self):
        keyed_by = block.src if site is drop_rows else block
        assert site(keyed_by, x, 0.0, 0) is x
        for p in (-0.1, 1.0, 1.5, float("nan"), 0.9999999):
            with pytest.raises(ConfigError, match="dropout: expected a probability"):
                site(keyed_by, x, p, 0)


def test_no_rows_and_wrong_rows(make_block):
    block = make_block([], 0)
    assert drop_rows(block.src, torch.zeros(0, 4), 0.5, 0).shape == (0, 4)
    assert drop_edges(block, torch.zeros(0, 4), 0.5, 0).shape == (0, 4)
    with pytest.raises(RequestError, match=r"one key per row of x \[2, 4\]; given \[0\]"):
        drop_rows(block.src, torch.zeros(2, 4), 0.5, 0)


def test_dropped_infinities_are_zero(make_block):
    out = drop_rows(make_block([[0]], 1, key=3).src, torch.full((1, 200), torch.inf), 0.5, 0)
    assert set(out.flatten().tolist()) == {0.0, torch.inf}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize(
    ("first", "width"), [(0, 11), (4, 7), (3, 8), (5, 2), (6, 1), (9, 2), (8, 3)]
)
def test_columns_have_the_same_mask_without_those_before_them(kernels, first, width, dtype):
    keys = row_keys(99, torch.arange(40))
    rows = torch.arange(1, 441).view(40, 11).to(dtype)
    threshold = drop_threshold(0.4)
    all_rows, columns = slice(None), slice(first, first + width)
    assert torch.equal(
        keep_mask(keys, width, threshold, first), keep_mask(keys, 11, threshold)[all_rows, columns]
    )
    inputs = rows[all_rows, columns].clone().requires_grad_()
    dropped = drop(inputs, keys, threshold, first)
    assert torch.equal(dropped, drop(rows, keys, threshold)[all_rows, columns])
    dropped.sum().backward()
    assert torch.equal(inputs.grad != 0, dropped != 0)
    stored = StoredRows.of([RowPart(rows[all_rows, columns].clone())], 40)
    nodes = Nodes("item", torch.arange(40), None, 5)
    assert torch.equal(
        drop_rows(nodes.with_columns_from(first), stored, 0.4, 0).to_tensor(),
        drop_rows(nodes, rows, 0.4, 0)[all_rows, columns],
    )
