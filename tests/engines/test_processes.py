"""Ranks that are processes, over gloo and gRPC, train as those that are threads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hopper.bench.parity import compare_gradients, read_recorded

from .conftest import RANK_SCRIPT
from .exactness import assert_exact
from .features import FEATURES, GRAPHS, OF_ONE_TYPE, case_of

# Of neutronstar's ways the one that is not chosen by measured times.
TURNS = {"neutronstar": 1}


def test_every_engine_over_gloo_and_grpc(
    serve_partitions: Callable[[Path, int], list[str]],
    run_ranks: Callable[..., list[Any]],
    train_cases: Callable[[list[dict[str, Any]], int, Path], list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    on_threads, in_processes, divided = [], [], {}
    for engine in (*OF_ONE_TYPE, "raf"):
        feature = {"raf": "types, learned rows", "neutronstar": "full"}.get(engine, "node")
        case = case_of(feature, engine, 0, TURNS.get(engine, 0))
        if case.division not in divided:
            name = FEATURES[feature].graph
            graph = GRAPHS[name](tmp_path / f"{name} {len(divided)}")
            divided[case.division] = case.divide(graph, tmp_path / f"parts {len(divided)}")
        parts = divided[case.division]
        on_threads.append(case.values(parts, tmp_path / f"threads {engine}"))
        in_processes.append(case.values(parts, tmp_path / f"processes {engine}"))
        if parts.layout.reads_remote_rows:
            in_processes[-1]["cluster"]["servers"] = serve_partitions(parts.path, 2)
    threads = train_cases(on_threads, 2, tmp_path)
    file = tmp_path / "cases.json"
    file.write_text(json.dumps([{"config": values} for values in in_processes]))
    processes = run_ranks(RANK_SCRIPT, 2, tmp_path / "ranks", str(file))[0]
    for thread, process, *values in zip(threads, processes, on_threads, in_processes, strict=True):
        assert process["losses"] == pytest.approx(thread["losses"], rel=1e-12)
        for what in ("val", "bytes", "rows", "lookups"):
            assert process[what] == thread[what], (what, values[0]["train"]["engine"])
        of_threads, of_processes = (
            read_recorded(Path(run["train"]["run_dir"]) / "gradients") for run in values
        )
        for ours, theirs in zip(of_threads, of_processes, strict=True):
            difference = compare_gradients(
                ours.step, ours.gradients, theirs.gradients, ours.loss, theirs.loss
            )
            assert difference.largest < 1e-12
        assert_exact(values[1], 2)
