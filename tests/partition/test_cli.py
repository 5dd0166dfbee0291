"""``hopper partition`` as a user sees it, and the tasks of Ray that build the same parts."""

import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from hopper.cli import main
from hopper.errors import RequestError
from hopper.graph import GraphDirectory, GraphWriter
from hopper.graph.schema import GraphSchema, Labelled, NodeType
from hopper.partition import PartitionedGraph, partition_graph
from hopper.partition.checksums import read_division
from hopper.partition.executor import Executor, RayExecutor, open_executor
from hopper.partition.memory import format_bytes


def run(library: GraphDirectory, *options: str) -> int:
    out = str(library.path.parent / "out")
    return main(["partition", str(library.path), "--servers", "2", "--out", out, *options])


def described(library: GraphDirectory) -> dict[str, Any]:
    return PartitionedGraph.open(library.path.parent / "out").description


def test_json_prints_the_description_alone(library, capfd):
    assert run(library, "--json", "--locality-roots", "9", "--backend", "pymetis") == 0
    printed, description = capfd.readouterr(), described(library)
    assert json.loads(printed.out) == description
    assert description["locality"]["roots"] == 9
    assert description["locality"]["fanouts"] == [10, 10]
    assert printed.err.startswith("memory: about ")
    assert "assign nodes (METIS, pymetis): " in printed.err
    assert "edge cuts" not in printed.err  # as METIS prints by itself


def test_tables_name_every_measure_and_the_size_of_topology(library, capfd, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    options = ["--method", "random", "--seed", "3", "--topology", "partitioned"]
    assert run(library, *options, "--locality-fanouts=-1,2") == 0
    printed, description = capfd.readouterr().out, described(library)
    assert f"edge cut {description['edge_cut']:.1%}" in printed
    assert f"R_micro {description['locality']['micrograph']:.1%}" in printed
    assert "(fanouts -1,2, 15 roots, batches of 1024)" in printed
    shares = description["shares"]["servers"]
    rows = [[cell.strip() for cell in line.split("│")[1:]] for line in printed.splitlines()]
    for server, share in enumerate(description["per_server"]):
        row = next(row for row in rows if row[:1] == [str(server)])
        counts = [*shares["nodes"].values(), shares["edges"], *shares["splits"].values()]
        assert row[1 : len(counts) + 1] == [f"{count[server]:,}" for count in counts]
        assert format_bytes(share["topology_bytes"]) in row
    assert f"{format_bytes(description['replicated_topology_bytes'])} replicated" in printed


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--layers", "2"], "error: --layers: only --method meta reads it, not metis"),
        (["--method", "meta", "--seed", "1"], "error: --seed: --method meta does not read it"),
        (["--memory-limit", "1M"], "are allowed by --memory-limit"),
        (["--memory-limit", "lots"], "error: --memory-limit: expected a number and a unit"),
        (["--locality-fanouts", "10,x"], "error: --locality-fanouts: expected positive numbers"),
        (["--locality-roots", "-1"], "error: --locality-roots: expected at least 0, given -1"),
    ],
)
def test_refusals_are_one_line_and_an_exit_code(library, capfd, options, text):
    assert run(library, *options) == 1
    assert text in capfd.readouterr().err.splitlines()[-1]
    assert not (library.path.parent / "out").exists()


def test_locality_is_not_measured_without_target_nodes(tmp_path, capfd):
    schema = GraphSchema("bare", {"paper": NodeType(3), "tag": NodeType(0)}, {}, "tag")
    with GraphWriter(tmp_path / "bare", schema):
        pass
    assert run(GraphDirectory(tmp_path / "bare", schema), "--method", "random") == 0
    printed = capfd.readouterr()
    assert "R_micro" not in printed.out
    assert "locality not measured: node type 'tag' has no nodes" in printed.err


def test_where_parts_cannot_be_built_is_refused(monkeypatch):
    expected = "--on: expected local, ray or ray:HOST:PORT, given"
    workers = "--workers: expected at least 1, of --on ray alone, given"
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ray", ModuleType("ray"))
        for where, count, text in (
            ("spark", None, f"{expected} 'spark'"),
            ("ray:", None, f"{expected} 'ray:'"),
            ("local", 2, f"{workers} 2 with --on local"),
            ("ray", 0, f"{workers} 0 with --on ray"),
            ("ray:nowhere", None, "--on ray:nowhere: expected ray:HOST:PORT"),
            ("ray:127.0.0.1:1", None, "--on ray:127.0.0.1:1: no Ray cluster: Connection"),
        ):
            with pytest.raises(RequestError, match=text), open_executor(where, count):
                pass
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RequestError, match="pip install ray"), open_executor("ray"):
        pass


@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
@pytest.mark.filterwarnings("ignore")
def test_every_number_of_workers_builds_the_same_files(shared_library, tmp_path, monkeypatch):
    kinds: list[dict[str, Any]] = [
        {"topology": "partitioned", "memory_limit": 300 << 20},
        {"features": "by-dimension"},
    ]

    def divide(name: str, executor: Executor, kinds: list[dict[str, Any]]) -> list[str]:
        outs = [tmp_path / f"{name}-{number}" for number in range(len(kinds))]
        for out, kind in zip(outs, kinds, strict=True):
            partition_graph(shared_library, out, 3, "random", executor=executor, **kind)
        return [read_division(out) for out in outs]

    # Ray's processes import the project from where this one does.
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[2]))
    with open_executor("local") as executor:
        expected = divide("local", executor, kinds)
    with open_executor("ray", 2) as executor:
        import ray

        assert divide("two tasks at a time", executor, kinds) == expected
        assert divide("one", RayExecutor(ray, "ray", 1), kinds[:1]) == expected[:1]
        # A failing task is reported in one line, and leaves no files.
        text = r"^--on ray: write_server \d: (Graph|OS|FileNotFound)Error: .*\.npy.*$"
        broken = BrokenGraph(shared_library.path, shared_library.schema)
        with pytest.raises(RequestError, match=text) as error:
            partition_graph(broken, tmp_path / "failed", 3, "random", executor=executor)
        assert "\n" not in str(error.value)
        assert not [path for path in tmp_path.iterdir() if "failed" in path.name]
    assert not ray.is_initialized()


class BrokenGraph(GraphDirectory):
    """A graph whose features are missing when another process reads them."""

    def features(self, owner: Labelled) -> Any:
        import ray

        if ray.get_runtime_context().get_task_id() is not None:
            raise FileNotFoundError(2, "No such file", str(self.file("features", owner)))
        return super().features(owner)
