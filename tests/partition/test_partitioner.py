"""What every way of dividing nodes promises, built-in or a plug-in."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from hopper.cli import main
from hopper.errors import ConfigError, RequestError
from hopper.graph.directory import GraphDirectory
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.balance import Balance
from hopper.partition.partitioner import METHODS, assign
from hopper.phases import Phases

RANGES = "range_partitioner:RangePartitioner"


class Short:
    def assign(self, graph: GraphDirectory, servers: int, seed: int) -> Any:
        return {name: np.zeros(3, np.int64) for name in graph.schema.node_types}


class Beyond:
    def assign(self, graph: GraphDirectory, servers: int, seed: int) -> Any:
        types = graph.schema.node_types.items()
        return {name: np.full(node_type.count, servers) for name, node_type in types}


class OneType:
    def assign(self, graph: GraphDirectory, servers: int, seed: int) -> Any:
        return {"paper": np.zeros(graph.schema.node_types["paper"].count, np.int64)}


class Careless:
    def assign(self, graph: GraphDirectory) -> Any: ...


@pytest.mark.parametrize("method", [*METHODS, RANGES])
@pytest.mark.parametrize("servers", [1, 3])
def test_every_node_has_a_server(library: GraphDirectory, method: str, servers: int) -> None:
    balance, scratch = Balance.of(library), library.path.parent

    def assign_homes() -> Any:
        assignment = assign(library, servers, method, 5, balance, Phases(None), scratch, "pymetis")
        assert (assignment.method, assignment.seed) == (method, 5)
        return assignment.homes

    first, repeated = assign_homes(), assign_homes()
    assert set(first) == set(library.schema.node_types)
    for name, node_type in library.schema.node_types.items():
        assert first[name].dtype == np.int32
        assert first[name].shape == (node_type.count,)
        assert np.isin(first[name], np.arange(servers)).all()
        assert np.array_equal(first[name], repeated[name])
    shares = np.bincount(first["paper"], minlength=servers)
    assert shares.min() > 0
    assert np.bincount(first["paper"][balance.training > 0], minlength=servers).min() > 0


def test_the_command_divides_by_a_plug_in(
    library: GraphDirectory, capfd: pytest.CaptureFixture[str]
) -> None:
    out = library.path.parent / "out"
    command = ["partition", str(library.path), "--servers", "2", "--out", str(out), "--method"]
    assert main([*command, RANGES, "--method-options", "{training_weight = 3.0}", "--json"]) == 0
    description = json.loads(capfd.readouterr().out)
    assert (description["method"], description["backend"]) == (RANGES, "range_partitioner")
    graph = PartitionedGraph.open(out)
    for name in ("paper", "author"):
        # Ranges of original ids: the numbering does not change.
        assert np.array_equal(graph.original_ids(name), np.sort(graph.original_ids(name)))
    assert graph.book.offsets["paper"][1] not in (0, 40)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("Short", {}, r"partitioners:Short: author: expected \[17\] integers.*got \[3\] of int64"),
        ("Beyond", {}, "expected servers from 0 to 1; got 2 for node 0"),
        ("OneType", {}, r"expected servers of the node types \['author', .*; got \['paper'\]"),
    ],
)
def test_bad_results_of_a_plug_in_are_refused(
    library: GraphDirectory, method: str, options: dict[str, Any], message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    use_here(monkeypatch)
    out = library.path.parent / "out"
    with pytest.raises(RequestError, match=message):
        partition_graph(library, out, 2, f"partitioners:{method}", method_options=options)
    assert not out.exists()


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("partitioners:Careless", {}, r"expected a Partitioner .* lacks assign\(graph, servers, s"),
        (
            RANGES,
            {"slack": 1},
            r"method_options.slack: range_part.* takes training_weight",
        ),
        ("random", {"slack": 1}, "method_options: method random has none"),
        ("ranges", {}, r"unknown partition method 'ranges'; expected .* or package.module:Class"),
    ],
)
def test_bad_plug_ins_are_refused_before_any_work(
    library: GraphDirectory, method: str, options: dict[str, Any], message: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    use_here(monkeypatch)
    with pytest.raises((ConfigError, RequestError), match=message):
        partition_graph(library, library.path.parent / "out", 2, method, method_options=options)


def test_options_are_a_table(library: GraphDirectory, capfd: pytest.CaptureFixture[str]) -> None:
    command = ["partition", str(library.path), "--servers", "2", "--out", "nowhere"]
    assert main([*command, "--method-options", "3"]) == 1
    assert "--method-options: expected a TOML table such as {key = 1}, given '3'" in (
        capfd.readouterr().err
    )


def use_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this file's classes be found as those of a module ``partitioners``."""
    import sys
    import types

    module = types.ModuleType("partitioners")
    module.__dict__.update(
        {partitioner.__name__: partitioner for partitioner in (Short, Beyond, OneType, Careless)}
    )
    monkeypatch.setitem(sys.modules, "partitioners", module)
