"""Metapaths, and tables of learnable rows by sub-metatree: what is sampled, whose rows are read.

That engines train them alike is shown in tests/engines.
"""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hopper.config import Config, make_config
from hopper.engines import Request
from hopper.engines.assemble import make_model, make_runner
from hopper.engines.reference import Reference
from hopper.graph import GraphDirectory, Relation
from hopper.hetero.learnable import distinct_by_table, first_rows
from hopper.hetero.metatree import make_metatree
from hopper.hetero.unroll import unroll
from hopper.partition import PartitionedGraph, partition_graph
from hopper.timing.run_log import RunLog
from tests.engines.features import PATHS, TABLES, Sections, World, case_of, merged
from tests.engines.graphs import WITH_FEATURES, make_graph


@pytest.fixture(scope="module")
def graph(tmp_path_factory) -> GraphDirectory:
    return make_graph(tmp_path_factory.mktemp("bare") / "graph", WITH_FEATURES)


@pytest.fixture(scope="module")
def on_two(graph, tmp_path_factory) -> PartitionedGraph:
    return partition_graph(graph, tmp_path_factory.mktemp("two") / "parts", 2, "random")


def compute_gradients(
    config: Config, graph: PartitionedGraph, rows: Callable[[str, np.ndarray], np.ndarray]
) -> tuple[float, dict[str, torch.Tensor]]:
    """Return loss and gradients of the first iteration, at first parameters and these rows."""
    request = Request(config, graph)
    trainer = make_runner(request, RunLog(None), 10**6, torch.device("cpu"))
    reference = Reference(config, graph, 2)
    batch = reference.schedule.batch(0, 0)
    (subgraph,) = trainer.sample(batch.roots, 0, 0)
    read = {name: [subgraph.nodes[name]] for name in trainer.reads.tables}
    parameters = {name: value.detach() for name, value in make_model(request).named_parameters()}
    for table, ids in distinct_by_table(read, trainer.reads.tables).items():
        parameters[f"learnable.{table}"] = torch.from_numpy(rows(table, ids))
        parameters[f"learnable.{table}.ids"] = torch.from_numpy(ids)
    loss, gradients = reference.gradient(0, 0, parameters)
    for table, ids in distinct_by_table(read, trainer.reads.tables).items():
        node_type = table.partition("@")[0]
        spread = torch.zeros(graph.book.total(node_type), 6, dtype=torch.float64)
        spread[ids] = gradients.pop(f"learnable.{table}")
        key = f"rows of {node_type}"
        gradients[key] = gradients[key] + spread if key in gradients else spread
    return loss, gradients


def same_rows(table: str, ids: np.ndarray) -> np.ndarray:
    """Return rows that depend on the node alone, whichever table they are in."""
    return first_rows(1, table.partition("@")[0], ids, 6)


@pytest.mark.parametrize("model", ["rgcn in blocks", "rgat", "hgt"])
def test_unrolled_types_with_equal_rows_are_the_plain_model(model, on_two, tmp_path):
    """All metapaths together, with the same rows in every table, compute the plain model.

    The gradient of a row is the sum over its copies.
    """
    case = case_of("types, learned rows", "model_centric", World(2, 1), 0, model)
    values = case.values(on_two, tmp_path / "run")
    plain_loss, plain = compute_gradients(make_config(values), on_two, same_rows)
    paths: Sections = {"model": {"metapaths": every_path(on_two, values["model"]["layers"])}}
    for option in (paths, *TABLES, paths | TABLES[0]):
        config = make_config(merged(values, option))
        loss, gradients = compute_gradients(config, on_two, same_rows)
        assert loss == pytest.approx(plain_loss, rel=1e-12)
        assert gradients.keys() == plain.keys()
        for name, value in plain.items():
            assert torch.allclose(gradients[name], value, rtol=0, atol=1e-12), (option, name)


def every_path(graph: PartitionedGraph, layers: int) -> list[list[str]]:
    paths: list[list[Relation]] = [[]]
    complete = []
    for _ in range(layers):
        paths = [
            [*path, relation]
            for path in paths
            for relation in graph.schema.ordered_relations()
            if relation.dst == (path[-1].src if path else "paper")
        ]
        complete += paths
    return [[str(relation) for relation in path] for path in complete]


def test_what_no_metapath_follows_is_not_sampled(on_two, tmp_path):
    case = case_of("types, learned rows", "model_centric", World(2, 1), 0, "rgcn")
    along: Sections = {"model": {"metapaths": PATHS}}
    config = make_config(merged(case.values(on_two, tmp_path / "run"), along))
    trainer = make_runner(Request(config, on_two), RunLog(None), 10**6, torch.device("cpu"))
    (subgraph,) = trainer.sample(np.arange(30), 0, 0)
    sampled_types = {name for name, ids in subgraph.nodes.items() if ids.size}
    assert sampled_types == {"paper", "author@1", "paper@1", "paper@2", "field@2", "author@2"}
    first, second = subgraph.hops
    drawn = {relation for relation, edges in first.items() if edges.indices.size}
    assert drawn == {Relation("author@1", "to", "paper"), Relation("paper@1", "to", "paper")}
    deeper = {relation for relation, edges in second.items() if edges.indices.size} - drawn
    assert deeper == {
        Relation("paper@2", "to", "author@1"),
        Relation("field@2", "to", "paper@1"),
        Relation("author@2", "to", "paper@1"),
    }
    assert {trainer.reads.tables[name] for name in trainer.reads.tables} == {"author", "field"}


def test_names_tell_depths_and_tables_apart(graph):
    tree = make_metatree(graph.schema, "paper", 2)
    unrolled = unroll(tree, by_depth=True, by="root")
    assert unrolled.types["author@author/to@1"] == unrolled.types["author@paper/to@2"] == "author"
    assert unrolled.tables["author@author/to@1"] == "author@author/to"
    assert unrolled.tables["paper"] == "paper"
    assert unrolled.depths["author@paper/to@2"] == 2
    relations, types = unrolled.read_at(0)
    assert types == ("paper",)
    assert tuple(sorted({unrolled.relations[relation] for relation in relations})) == tree.roots
    assert {relation.dst for relation in unrolled.read_at(1)[0]} >= {"paper", "author@author/to@1"}
    unrolled = unroll(tree, by_depth=False, by="relation")
    assert unrolled.tables["author@to/paper"] == "author@to/paper"
    assert unrolled.types["paper@to/author"] == unrolled.types["paper@to/paper"] == "paper"
    # Authors are read by roots, and by papers that roots read; not by those that are two hops away.
    read = {
        (str(relation.src), relation.dst)
        for relation in unrolled.relations
        if relation.dst.startswith("paper")
    }
    assert {src for src, _ in read if unrolled.types[src] == "author"} == {"author@to/paper"}
    readers = {dst for src, dst in read if unrolled.types[src] == "author"}
    assert readers == {"paper", "paper@to/paper"}
