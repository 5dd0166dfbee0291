"""Every engine computes the gradient of one process, whatever a run asks for and wherever it is.

Guards against: means of means, wrong divisors, forgotten or doubled groups, draws or dropout that
depend on placement, rows of other nodes or edges, deadlocks of ranks without roots. The cases are
data: features.py.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from hopper.bench.parity import RecordedGradient
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.checks import check_request
from hopper.engines.learnable_tables import make_tables
from hopper.errors import RequestError

from .conftest import assert_exact
from .features import (
    FEATURES,
    OF_ONE_TYPE,
    OF_SEVERAL_TYPES,
    ONE_TYPE,
    TYPED,
    Case,
    World,
    case_of,
    choose,
)
from .parity_rank import open_once

CASES = choose()
OTHER_BATCHES = ("locality", "neutronstar")
"""engines whose global batches are their own"""


@pytest.mark.parametrize("feature", FEATURES)
def test_every_engine_computes_the_gradient_of_one_process(feature, train):
    """Losses, and scores where they are compared, do not depend on engine, world or division."""
    curves: dict[Any, tuple[list[float], list[float]]] = {}
    runs = train([(case, {}) for case in CASES if case.feature == feature])
    for number, (case, values, _, result) in enumerate(runs):
        recorded = assert_exact(values, case.world.size, str(case), in_other_orders=number == 0)
        check(case, values, result, recorded)
        if FEATURES[feature].few or case.variant.startswith(OTHER_BATCHES):
            continue
        # What one process computes depends on this, and on nothing else of a case.
        key = case.model, str(case.sections), values["model"].get("edge_features")
        losses, scores = curves.setdefault(key, (result["losses"], result["val"]))
        assert result["losses"] == pytest.approx(losses, rel=1e-9), case
        assert result["val"] == pytest.approx(scores, abs=1e-9), case


def check(
    case: Case, values: dict[str, Any], result: dict[str, Any], recorded: list[RecordedGradient]
) -> None:
    """Assert what else a case promises: who learns, and what crosses a link."""
    config = make_config(values)
    graph, gradients = open_once(config), recorded[0].gradients
    of_edges = [name for name in gradients if "edge_linear" in name]
    assert bool(of_edges) == config.model.edge_features, case
    assert all(gradients[name].abs().max() > 0 for name in of_edges), case
    learned = [name for name in gradients if name.startswith("learnable.")]
    tables = make_tables(Request(config, graph))
    frozen = {*config.learnable.frozen}
    assert learned == [
        f"learnable.{table.name}" for table in tables if table.node_type not in frozen
    ], case
    if config.learnable.tables == "tied":
        assert all(gradients[name].any() for name in learned), case
    assert (result["val"][0] is not None) == FEATURES[case.feature].scored, case
    bytes_, servers = result["bytes"], case.world.servers
    travels = {cause for cause, size in bytes_.items() if size} - {"control"}
    if servers == 1:
        assert not travels, case
    elif case.engine in ("p3", "naive"):
        # Labels of roots, and rows of edges, count as features.
        assert travels - {"feature"} == {"topology", "partial", "gradient"} | (
            {"model"} if case.engine == "naive" else set()
        ), case
    elif case.engine == "neutronstar" and graph.schema.predicted == "node":
        # Features of other servers have been read in the first epoch.
        if "hybrid" not in case.variant:
            # Otherwise measured times choose.
            assert (bytes_["partial"] == 0) == ("recompute" in case.variant), case
        assert bytes_["feature"] == 0 or config.model.edge_features, case
    elif case.engine == "neutronstar":
        # Every epoch draws other negatives; what was fetched before is not fetched again.
        lines = Path(config.train.run_dir, "epochs.jsonl").read_text().splitlines()
        fetched = [json.loads(line)["bytes"]["feature"] for line in lines]
        assert fetched[1] < max(1, fetched[0] / 2), case
    elif case.engine == "raf":
        assert result["rows"]["remote"] == 0, case
        assert learned or bytes_["feature"] == 0, case
        assert bytes_["partial"] > 0, case
        if config.learnable.tables == "per_server_table" and case.world == (2, 1, "replicated"):
            # Tables of a sub-metatree stay with it.
            assert bytes_["feature"] == 0, case
    elif case.engine == "hop":
        assert config.hop.merge != "off" or "model" in travels or config.hop.migrate != "model", (
            case
        )
        assert config.hop.migrate == "model" or "model" not in travels, case


@pytest.mark.parametrize(
    ("feature", "engine"),
    [
        ("types", "nearest_rows:NearestRows"),
        ("own sampler", "nearest_rows:NearestRows"),
        ("types", "benchmarks.baselines.by_relation:ByRelation"),
    ],
)
def test_an_engine_from_outside_computes_it_too(feature, engine, train):
    case = case_of(feature, "model_centric", World(2, 1), 0, "rgcn")
    [run] = train([(case, {"train": {"engine": engine}})])
    assert_exact(run.values, 2)


@pytest.mark.parametrize(
    ("feature", "engine"),
    [(name, engine) for name, feature in FEATURES.items() for engine in feature.refused],
)
def test_what_an_engine_does_not_train_it_refuses(feature, engine, divided, tmp_path):
    case, other = (case_of(feature, name, 0) for name in (engine, "cooperative"))
    expected = FEATURES[feature].refused[engine]

    def ask() -> None:
        graph = divided(case)
        values = case.values(graph, tmp_path)
        if "sampler" in expected:
            values["sampler"] = other.values(graph, tmp_path)["sampler"]
        check_request(Request(make_config(values), graph))

    with pytest.raises(RequestError, match=expected):
        ask()


@pytest.mark.parametrize("engine", [*OF_ONE_TYPE, "raf"])
def test_engines_of_one_or_of_several_types_refuse_the_others(engine, divided, tmp_path):
    is_of_several = engine in OF_SEVERAL_TYPES
    case = case_of("types" if is_of_several else "node", engine, 0)
    values = case.values(divided(case), tmp_path)
    values["model"] = ONE_TYPE["gat"] if is_of_several else TYPED["rgcn"]
    values["sampler"]["fanouts"] = [3, 2]
    with pytest.raises(RequestError, match=r"^(model\.name|train\.engine): |relations; model "):
        check_request(Request(make_config(values), divided(case)))
