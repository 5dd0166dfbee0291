"""A root relation whose edges lie on several servers: gradients, scores and refusals."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cache_server.store.shard import Shard
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.checks import check_request
from hopper.errors import ConfigError, RequestError
from hopper.features import RemoteRows
from hopper.graph import GraphDirectory
from hopper.graph.schema import Relation
from hopper.hetero.divide import partition_by_relation
from hopper.hetero.metatree import make_metatree
from hopper.hetero.vertex_cut import cut, part_bytes

from .exactness import assert_exact
from .typed_cases import LEARNABLE, MODELS, TRAIN, WIDTHS, WITH_FEATURES, make_graph

TrainCases = Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]]

CITES = Relation("paper", "to", "paper")
PLUG_IN_MODEL: dict[str, Any] = {
    **MODELS["own, relations apart"],
    "aggregate": "own_aggregations:DroppingInParts",
}
CUT_MODELS: dict[str, dict[str, Any]] = {
    **MODELS,
    "rgat with a head": {"name": "rgat", "layers": 2, "hidden": 8, "heads": 2, "head": True},
    "without root weight": {"name": "rgcn", "layers": 2, "hidden": 8, "root_weight": False},
    "own, relations apart": PLUG_IN_MODEL,
    "own, mean of present": {**PLUG_IN_MODEL, "combine": "mean_of_present"},
    "own, mean": {**PLUG_IN_MODEL, "combine": "mean"},
    "own, not added up": {
        **PLUG_IN_MODEL,
        "aggregate": "own_aggregations:Smooth",
        "combine": "mean_of_present",
    },
}
# (graph, model, other sections) by number of servers. There are four root relations. On four
# servers two of them share one, because CITES takes two. On six the largest of the others has a
# replica. A model that one number of servers leaves out is trained on the other.
TABLES: dict[str, Any] = {"learnable": LEARNABLE | {"tables": "per_server_table"}}
CHOSEN: dict[int, list[tuple[str, str, dict[str, Any]]]] = {
    4: [
        ("featured", "rgcn", {}),
        ("featured", "rgat with a head", {"raf": {"reduce": "designated"}}),
        ("featured", "hgt, one layer", {}),
        *(("featured", name, {}) for name in CUT_MODELS if name.startswith("own, ")),
        ("bare", "hgt", {"sampler": {"fanouts": [-1, -1]}}),
    ],
    6: [
        ("featured", "without root weight", {}),
        ("featured", "rgcn of bases", {}),
        ("bare", "rgat", TABLES),
    ],
}
SCORED = {4: 1, 6: 0}
"""By servers, how many of these, from the first, also train whole relations."""


def smallest_memory(
    graph: GraphDirectory, root: Relation = CITES, metapaths: Sequence[Sequence[str]] = ()
) -> int:
    """Return the smallest memory of a server with which a root relation is cut in two."""
    tree = make_metatree(graph.schema, "paper", 2, metapaths)
    return max(sum(part_bytes(graph, part)) for part in cut(graph, tree, root, 2))


def case(
    graph: str, model: dict[str, Any], folder: Path, number: int, ranks_per_server: int = 1
) -> dict[str, Any]:
    return {
        "data": {"partitioned": str(folder / graph)},
        "model": model,
        "sampler": {"fanouts": [3, 2][: model["layers"]]},
        "train": TRAIN | {"engine": "raf", "run_dir": str(folder / f"run {number}")},
        "learnable": LEARNABLE,
        "cluster": {"ranks_per_server": ranks_per_server},
    }


def check(cases: list[dict[str, Any]], results: list[dict[str, Any]], world: int) -> None:
    """Assert that gradients and losses are those of one process, and that no row crossed a link."""
    for values, result in zip(cases, results, strict=True):
        assert_exact(values, world)
        assert result["rows"]["remote"] == 0


@pytest.mark.parametrize("servers", [4, 6])
def test_its_gradient_is_that_of_one_process(
    servers: int, train_cases: TrainCases, tmp_path: Path
) -> None:
    for name, featured in (("featured", tuple(WIDTHS)), ("bare", WITH_FEATURES)):
        graph = make_graph(tmp_path / f"{name} graph", featured)
        memory = smallest_memory(graph)
        parts = partition_by_relation(
            graph, tmp_path / name, servers, layers=2, server_memory=memory
        )
        assert [
            partition.part for partition in parts.partitions if partition.roots == (CITES,)
        ] == [
            (0, 2),
            (1, 2),
        ]
        assert [partition.part.num_shards for partition in parts.partitions].count(1) == servers - 2
        if name == "featured":
            partition_by_relation(graph, tmp_path / "whole", servers, layers=2)
    scored, cases = SCORED[servers], []
    for number, (graph, name, more) in enumerate(CHOSEN[servers]):
        cases.append(case(graph, CUT_MODELS[name], tmp_path, number) | more)
        if number >= scored:
            cases[-1]["train"]["evaluate_every"] = 0
    for _, name, _ in CHOSEN[servers][:scored]:
        cases.append(case("whole", CUT_MODELS[name], tmp_path, len(cases)))
    results = train_cases(cases, servers, tmp_path)
    check(cases, results, servers)
    for result, uncut in zip(results[:scored], results[len(results) - scored :], strict=True):
        assert result["losses"] == pytest.approx(uncut["losses"], rel=1e-9)
        assert result["val"] == uncut["val"]


def test_a_graph_whose_only_root_relation_is_cut(train_cases: TrainCases, tmp_path: Path) -> None:
    """The relation, with metapaths, is cut over two servers with two ranks each."""
    graph = make_graph(tmp_path / "graph", WITH_FEATURES)
    paths = [["author/to/paper", "paper/to/author"]]
    memory = smallest_memory(graph, Relation("author", "to", "paper"), paths)
    parts = partition_by_relation(
        graph, tmp_path / "parts", 2, 2, metapaths=paths, server_memory=memory
    )
    assert [partition.part for partition in parts.partitions] == [(0, 2), (1, 2)]
    cases = []
    for name in ("rgcn", "hgt"):
        model = MODELS[name] | {"metapaths": paths}
        cases.append(case("parts", model, tmp_path, len(cases), ranks_per_server=2))
    check(cases, train_cases(cases, 4, tmp_path), 4)


def test_what_needs_all_neighbours_is_refused(tmp_path: Path) -> None:
    graph = make_graph(tmp_path / "graph", tuple(WIDTHS))
    memory = smallest_memory(graph)
    parts = partition_by_relation(graph, tmp_path / "parts", 4, layers=2, server_memory=memory)
    good = case("parts", MODELS["rgcn"], tmp_path, 0)
    check_request(Request(make_config(good), parts))

    def check_refused(message: str, **more: Any) -> None:
        with pytest.raises(RequestError, match=message):
            check_request(Request(make_config(good | more), parts))

    labor = {"kind": "labor", "fanouts": [3, 2]}
    check_refused(
        "sampler.kind: 'labor' reads all in-edges .* a part of paper/to/paper", sampler=labor
    )
    gated = MODELS["own, mean of present"]
    check_refused("model.aggregate: GatedAggregation needs all of a node's neighbours", model=gated)
    for name in ("Bounded", "DroppingInParts"):
        model = PLUG_IN_MODEL | {"aggregate": f"own_aggregations:{name}", "combine": "sum"}
        if name == "Bounded":
            check_refused("model.aggregate: Bounded needs all of a node's neighbours", model=model)
        combine = {"combine": "own_aggregations:BoundedSum"}
        check_refused(
            "model.combine: BoundedSum makes partials of whole relations", model=model | combine
        )


def test_rows_cannot_be_fetched_where_relations_are_divided(tmp_path: Path) -> None:
    graph = make_graph(tmp_path / "graph", tuple(WIDTHS))
    memory = smallest_memory(graph)
    parts = partition_by_relation(graph, tmp_path / "parts", 4, layers=2, server_memory=memory)
    assert Shard.open(tmp_path / "parts" / "server-3").tables == {}
    with pytest.raises(ConfigError, match=r"store some nodes of a type each"):
        RemoteRows(parts, ["127.0.0.1:1"] * 4, 1.0)
