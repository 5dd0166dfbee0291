"""A root relation whose edges lie on several servers: gradients, scores and refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopper.bench.parity import check_engine, read_recorded
from hopper.config import make_config
from hopper.engines.assemble import check_division
from hopper.engines.reference import Reference
from hopper.errors import RequestError
from hopper.graph import GraphDirectory
from hopper.graph.schema import Relation
from hopper.hetero.metagraph import make_metagraph
from hopper.hetero.metatree import make_metatree
from hopper.hetero.vertex_cut import cut, part_bytes
from hopper.hetero.write_partition import partition_by_relation
from hopper.partition import PartitionedGraph

from .typed_cases import LEARNABLE, MODELS, TRAIN, WIDTHS, WITH_FEATURES, make_graph

CITES = Relation("paper", "to", "paper")
OWN: dict[str, Any] = {
    **MODELS["own, relations apart"],
    "aggregate": "own_aggregations:DroppingInParts",
}
ON_FEATURES: dict[str, dict[str, Any]] = {
    **{name: MODELS[name] for name in ("rgcn", "rgcn of bases", "rgat", "hgt", "hgt, one layer")},
    "rgat with a head": {"name": "rgat", "layers": 2, "hidden": 8, "heads": 2, "head": True},
    "without root weight": {"name": "rgcn", "layers": 2, "hidden": 8, "root_weight": False},
    "own, relations apart": OWN,
    "own, mean of present": {**OWN, "combine": "mean_of_present"},
    "own, mean": {**OWN, "combine": "mean"},
}
BARE_MODELS = ("rgcn", "rgat", "hgt")


def smallest_memory(graph: GraphDirectory, parts: int) -> int:
    """With which CITES is cut into so many parts."""
    tree = make_metatree(make_metagraph(graph.schema), "paper", 2)
    relations = tree.relations_of([CITES])
    return max(sum(part_bytes(graph, part, relations)) for part in cut(graph, tree, CITES, parts))


def case(graph: str, model: dict[str, Any], folder: Path, number: int) -> dict[str, Any]:
    return {
        "data": {"partitioned": str(folder / graph)},
        "model": model,
        "sampler": {"fanouts": [3, 2][: model["layers"]]},
        "train": TRAIN | {"engine": "raf", "run_dir": str(folder / f"run {number}")},
        "learnable": LEARNABLE,
        "cluster": {"ranks_per_server": 1},
    }


# Four root relations: one server has two of them where CITES takes two servers of four; with five,
# three have a part of it each.
@pytest.mark.parametrize(("servers", "parts"), [(4, 2), (5, 3)])
def test_its_gradient_is_that_of_one_process(
    servers: int,
    parts: int,
    train_cases: Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    for name, featured in (("featured", tuple(WIDTHS)), ("bare", WITH_FEATURES)):
        graph = make_graph(tmp_path / f"{name} graph", featured)
        memory = smallest_memory(graph, parts)
        made = partition_by_relation(
            graph, tmp_path / name, servers, layers=2, server_memory=memory
        )
        assert [each.part for each in made.holdings if each.roots == (CITES,)] == [
            (place, parts) for place in range(parts)
        ]
        assert [each.part.parts for each in made.holdings].count(1) == servers - parts
        partition_by_relation(graph, tmp_path / f"{name} whole", servers, layers=2)
    chosen = [("featured", model) for model in ON_FEATURES.values()]
    chosen += [("bare", MODELS[name]) for name in BARE_MODELS]
    if parts == 3:
        chosen = chosen[::3]
    cases = [case(*each, tmp_path, number) for number, each in enumerate(chosen)]
    if parts == 2:
        cases.append(case("bare", MODELS["rgat"], tmp_path, len(cases)))
        cases[-1]["learnable"] = LEARNABLE | {"tables": "per_server_table"}
        cases.append(case("featured", MODELS["rgat"], tmp_path, len(cases)))
        cases[-1]["raf"] = {"reduce": "designated"}
        cases.append(case("featured", MODELS["hgt"], tmp_path, len(cases)))
        cases[-1]["sampler"] = {"fanouts": [-1, -1]}
    # The same on whole relations, for the scores.
    for graph, model in chosen[:3]:
        cases.append(case(f"{graph} whole", model, tmp_path, len(cases)))
    results = train_cases(cases, servers, tmp_path)
    for values in cases:
        config = make_config(values)
        divided = PartitionedGraph.open(config.data.partitioned)
        recorded = read_recorded(Path(config.train.run_dir) / "gradients")
        reference = Reference(config, divided, servers)
        parity = check_engine(str(config.model), "float64", reference, recorded)
        assert parity.gradient_difference < 1e-10, parity
        assert parity.loss_difference < 1e-10, parity
    for result in results:
        assert result["rows"]["remote"] == 0
    for result, whole in zip(results, results[-3:], strict=False):
        assert result["losses"] == pytest.approx(whole["losses"], rel=1e-9)
        assert result["val"] == whole["val"]


def test_what_needs_all_neighbours_is_refused(tmp_path: Path) -> None:
    graph = make_graph(tmp_path / "graph", tuple(WIDTHS))
    memory = smallest_memory(graph, 2)
    made = partition_by_relation(graph, tmp_path / "parts", 4, layers=2, server_memory=memory)
    good = case("parts", MODELS["rgcn"], tmp_path, 0)
    check_division(make_config(good), made)
    labor = good | {"sampler": {"kind": "labor", "fanouts": [3, 2]}}
    with pytest.raises(RequestError, match=r"sampler.kind: 'labor' reads all in-edges"):
        check_division(make_config(labor), made)
    gated = good | {"model": MODELS["own, mean of present"]}
    with pytest.raises(RequestError, match="GatedAggregation needs all of a node's neighbours"):
        check_division(make_config(gated), made)
