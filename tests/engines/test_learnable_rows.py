"""Learnable rows: where they begin, who updates them, and what a typed model does not learn."""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from hopper.bench.parity import read_recorded
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_model
from hopper.engines.checks import check_request
from hopper.engines.micro_batch import InputRowsByType
from hopper.engines.reference import Reference
from hopper.engines.request import ModelReads
from hopper.errors import RequestError
from hopper.hetero.learnable import Leaf, LeafRows, first_rows
from hopper.hetero.sparse_optimizers import OPTIMIZERS
from hopper.models.relation_layer import RelationLayer
from hopper.models.relational import HGNN
from hopper.partition import PartitionedGraph

from .conftest import assert_exact
from .features import World, case_of, merged
from .graphs import COUNTS, EDGES, LEARNABLE, MODELS, WITH_FEATURES

SEED = 3


@pytest.mark.parametrize("engine", ["model_centric", "hop", "cooperative", "raf"])
def test_rows_are_fetched_updated_and_saved_each_by_one_rank(engine, divided, train):
    case = case_of("types, learned rows", engine, World(2, 2), 0, "rgcn")
    # The first update is one of the whole gradient.
    [run] = train([(case, {"train": {"clip_norm": 0.0, "evaluate_every": 0}})])
    assert_exact(run.values, 4)
    shards = [load_file(run.folder / f"learnable-rank-{rank}.safetensors") for rank in range(4)]
    for name in ("author", "field"):
        ids = np.concatenate([shard[f"{name}.ids"] for shard in shards])
        assert sorted(ids) == list(range(COUNTS[name]))
    check_updates(run.folder / "gradients", divided(case))
    if engine == "cooperative":
        # Both ways of sending have to be among those compared.
        spans = "".join(file.read_text() for file in run.folder.glob("spans/*.jsonl"))
        assert re.search(r'"sums_from": \[\d', spans)
        assert run.result["bytes"]["partial"] > 0


def check_updates(recorded: Path, graph: PartitionedGraph) -> None:
    """Assert that rows begin as specified, and that the first update is the optimiser's."""
    first, second = read_recorded(recorded)
    for name in ("author", "field"):
        key = f"learnable.{name}"
        ids, later = (record.parameters[f"{key}.ids"].numpy() for record in (first, second))
        originals = np.ascontiguousarray(graph.original_ids(name)[ids])
        rows = first.parameters[key].numpy()
        assert np.array_equal(rows, first_rows(SEED, name, originals, 6))
        start = torch.from_numpy(rows)
        optimizer = OPTIMIZERS["adam"](LEARNABLE["learning_rate"])
        records = torch.stack((start, start * 0, start * 0), 1)
        optimizer.step(records, first.gradients[key] + LEARNABLE["l2"] * start)
        table = torch.zeros(COUNTS[name], 6, dtype=torch.float64)
        table[ids] = records[:, 0]
        both = np.intersect1d(ids, later)
        assert both.size
        updated = second.parameters[key][np.searchsorted(later, both)]
        assert torch.allclose(updated, table[both], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_only_parameters_of_empty_types_and_relations_never_learn(name, divided, tmp_path):
    """A parameter that never gets a gradient would pass every comparison."""
    case = case_of("types", "model_centric", World(1, 1), 0, name)
    graph = divided(case)
    config = make_config(case.values(graph, tmp_path / "run"))
    model = make_model(Request(config, graph))
    assert isinstance(model, HGNN)
    # What begins at zero would hide what it multiplies.
    parameters = {
        name: value.detach() + 0.1 * (value == 0) for name, value in model.named_parameters()
    }
    _, gradients = Reference(config, graph, 1).gradient(0, 0, parameters)
    empty = {f"inputs.{model.types.index('nobody')}."}
    for index, layer in enumerate(model.layers):
        assert isinstance(layer, RelationLayer)
        empty |= {
            f"layers.{index}.aggregations.{place}."
            for place, relation in enumerate(layer.relations)
            if not EDGES[relation]
        }
        if "nobody" in layer.types:
            empty.add(f"layers.{index}.updates.{layer.types.index('nobody')}.")
        if hasattr(layer, "projections"):
            types = sorted({node_type for r in layer.relations for node_type in (r.src, r.dst)})
            empty.add(f"layers.{index}.projections.{types.index('nobody')}.")
    idle = [name for name, value in gradients.items() if not value.any()]
    assert [name for name in idle if not any(name.startswith(start) for start in empty)] == []


def write_rows(folder: Path) -> np.ndarray:
    folder.mkdir()
    rows = np.random.default_rng(7).standard_normal((COUNTS["author"], 6)).astype(np.float32)
    np.save(folder / "author.npy", rows)
    return rows


def test_rows_begin_as_given_and_frozen_ones_stay(train, tmp_path):
    given = write_rows(tmp_path / "rows")
    asked: list[tuple[str, dict[str, Any]]] = [
        ("zero_hop in passes", {}),
        ("zero_hop in passes", {"frozen": ["author", "field"]}),
        ("cooperative", {"frozen": ["author"]}),
        ("raf", {"frozen": ["author"]}),
        ("raf", {"frozen": ["author"], "tables": "per_server_table"}),
    ]
    shared = {"initial": str(tmp_path / "rows")}
    often = {"train": {"checkpoint_every": 100, "evaluate_every": 0}}
    cases = [case_of("types, learned rows", engine, World(2, 1), 0, "rgat") for engine, _ in asked]
    runs = train(
        [
            (case, {"learnable": shared | learnable} | often)
            for case, (_, learnable) in zip(cases, asked, strict=True)
        ]
    )
    for number, (run, (_, learnable)) in enumerate(zip(runs, asked, strict=True)):
        assert_exact(run.values, 2)
        tables = load_file(run.folder / "learnable-rank-0.safetensors")
        learned = set(COUNTS) - {*WITH_FEATURES, *learnable.get("frozen", ())}
        checkpoint = next(run.folder.glob("checkpoints/learnable-rank-0-*"))
        saved = {name.split(".")[1].split("@")[0] for name in load_file(checkpoint)}
        assert saved == learned
        for name in [table for table in tables if not table.endswith(".ids")]:
            node_type, ids = name.split("@")[0], tables[f"{name}.ids"]
            first = given[ids] if node_type == "author" else first_rows(SEED, name, ids, 6)
            is_first = bool((tables[name] == first).all())
            assert is_first == (node_type not in learned or not ids.size), (number, name)
    results = [run.result for run in runs]
    assert results[1]["bytes"]["gradient"] < results[0]["bytes"]["gradient"]
    assert results[2]["losses"] == pytest.approx(results[3]["losses"], rel=1e-9)


def test_rows_that_do_not_fit_are_refused(divided, tmp_path):
    case = case_of("types, learned rows", "model_centric", World(1, 1), 0, "rgat")
    parts, file = divided(case), tmp_path / "rows" / "author.npy"
    write_rows(tmp_path / "rows")

    def check_refused(message: str, **learnable: Any) -> None:
        own = {"learnable": {"initial": str(tmp_path / "rows")} | learnable}
        config = make_config(merged(case.values(parts, tmp_path), own))
        with pytest.raises(RequestError, match=message):
            check_request(Request(config, parts))

    check_refused(
        r"learnable.frozen: expected node types with learnable rows .* given paper",
        frozen=["paper"],
    )
    check_refused(
        r"learnable.initial: .*/nowhere has none of author.npy, field.npy",
        initial=str(tmp_path / "nowhere"),
    )
    check_refused(r"author.npy: expected floats \[60, 8\] .* given float32 \[60, 6\]", dim=8)
    np.save(file, np.zeros((60, 6), np.int64))
    check_refused(r"expected floats \[60, 6\] .* given int64 \[60, 6\]")
    file.write_bytes(b"")
    check_refused("author.npy: not a readable .npy file")
    with file.open("wb") as archive:
        np.savez(archive, rows=np.zeros((60, 6), np.float32))
    check_refused("author.npy: expected one .npy array, given an archive of several")


def test_a_node_at_several_times_has_one_row_whose_gradients_add_up():
    """Where nodes repeat, as many rows as a table has are not the table."""
    leaf = Leaf(np.array([3, 5, 8]), torch.arange(6.0).view(3, 2), learns=True)
    reads = cast(ModelReads, SimpleNamespace(inputs={"author": SimpleNamespace(learned=2)}))
    nodes = {"author": np.array([8, 3, 8])}
    learned = LeafRows({"author": leaf}, {"author": "author"})
    rows = InputRowsByType(reads, nodes, {}, learned, repeats=True)["author"]
    assert rows.tolist() == [[4, 5], [0, 1], [4, 5]]
    (rows * torch.tensor([[1.0], [10.0], [100.0]])).sum().backward()
    assert leaf.gradient.tolist() == [[10, 10], [0, 0], [101, 101]]
