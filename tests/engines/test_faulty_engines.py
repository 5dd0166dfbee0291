"""The comparisons of the A/B and of test_conformance.py find every one of many small faults in
engines, and no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from faulty_engines import FAULTS

from hopper.bench.parity import EngineParity, check_engine, compare_losses, read_recorded
from hopper.config import make_config
from hopper.engines.reference import Reference
from hopper.graph.directory import GraphDirectory
from hopper.partition import partition_graph

from .exactness import assert_exact

ENGINES = {"sent": "FaultyCooperative", "sum": "FaultyHop", "update": "FaultyHop"}
CASES = [
    *((ENGINES.get(fault.stage, "FaultyZeroHop"), name) for name, fault in FAULTS.items()),
    *(
        ("FaultyCooperative", name)
        for name in ("none", "one tensor off by 1e-6", "a mean of means")
    ),
    *(("FaultyHop", name) for name in ("none", "a rank's gradient is missing", "a stale gradient")),
]


@pytest.fixture(scope="module")
def verdicts(
    community_graph: GraphDirectory,
    serve_partitions: Callable[[Path, int], list[str]],
    train_cases: Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[tuple[str, str], tuple[EngineParity, bool]]:
    """Train all cases on one set of ranks, and compare them as the A/B does.

    Returns
    -------
    By case, the A/B's verdict, and whether the case conforms.
    """
    folder = tmp_path_factory.mktemp("faults")
    graph = partition_graph(community_graph, folder / "parts", 2, "random")
    servers = {"servers": serve_partitions(folder / "parts", 2), "ranks_per_server": 1}
    configs = []
    for number, (engine, name) in enumerate(CASES):
        train = {
            "engine": f"faulty_engines:{engine}",
            "engine_options": {"fault": name, "seed": number},
            "dtype": "float64",
            "batch_size": 13,
            "epochs": 1,
            "evaluate_every": 0,
            "record_gradients": [0, 1, 2],
            "run_dir": str(folder / f"run-{number}"),
        }
        configs.append(
            {
                "data": {"partitioned": str(folder / "parts")},
                "model": {"name": "sage", "layers": 2, "hidden": 6, "dropout": 0.3},
                "sampler": {"fanouts": [4, 3]},
                "train": train,
                "cluster": servers,
            }
        )
    results = train_cases(configs, 2, folder)
    reference = Reference(make_config(configs[0]), graph, 2)
    found = {}
    for case, config, result in zip(CASES, configs, results, strict=True):
        recorded = read_recorded(Path(config["train"]["run_dir"]) / "gradients")
        parity = check_engine(": ".join(case), "float64", reference, recorded)
        curve = compare_losses(result["losses"], results[0]["losses"], "float64")
        verdict = EngineParity(parity.engine, "float64", parity.gradients, curve)
        found[case] = verdict, conforms(config, result, results[0])
    return found


def conforms(config: dict[str, Any], result: dict[str, Any], right: dict[str, Any]) -> bool:
    """Return whether a run has the gradients of one process, and the losses of other engines."""
    try:
        assert_exact(config, 2)
        assert result["losses"] == pytest.approx(right["losses"], rel=1e-9)
    except AssertionError:
        return False
    return True


@pytest.mark.parametrize("case", CASES, ids=": ".join)
def test_a_fault_is_refused(
    verdicts: dict[tuple[str, str], tuple[EngineParity, bool]], case: tuple[str, str]
) -> None:
    parity, is_exact = verdicts[case]
    assert bool(parity.problems) == (case[1] != "none"), parity
    assert is_exact == (case[1] == "none"), parity


def test_faults_are_as_small_as_a_millionth_of_a_gradient(
    verdicts: dict[tuple[str, str], tuple[EngineParity, bool]],
) -> None:
    parity, _ = verdicts["FaultyHop", "one tensor off by 1e-6"]
    assert parity.gradient_difference < 1.1e-6
    assert sum(name != "none" for _, name in CASES) >= 30
