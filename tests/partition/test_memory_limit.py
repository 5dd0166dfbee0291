"""``hopper partition --memory-limit`` holds while it works, on graphs that need more without it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hopper.config.bounds import parse_size
from hopper.errors import GraphError
from hopper.graph import check_topology
from hopper.graph import memory_budget as sizes
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import LEAST_CHUNK, MOST_CHUNK, MemoryBudget
from hopper.graph.schema import EdgeType, GraphSchema, NodeType, Relation
from hopper.graph.topology import build_topology
from hopper.graph.write import GraphWriter
from hopper.partition import build, partition_graph
from hopper.partition.checksums import read_division
from hopper.partition.memory import choose_pieces, estimate_memory

LIMIT = "288M"
PAPERS, AUTHORS, EDGES = 1_500_000, 100_000, 1_000_000
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> GraphDirectory:
    """Many nodes, whose arrays take more than the limit has room for, in two types."""
    path = tmp_path_factory.mktemp("large") / "graph"
    cites, writes = Relation("paper", "cites", "paper"), Relation("author", "writes", "paper")
    schema = GraphSchema(
        "large",
        {"paper": NodeType(PAPERS, 4, "float32"), "author": NodeType(AUTHORS)},
        {cites: EdgeType(EDGES), writes: EdgeType(EDGES)},
        "paper",
        splits={"train": PAPERS},
    )
    generator = np.random.default_rng(0)
    with GraphWriter(path, schema) as writer:
        for relation in schema.relations:
            sources = schema.node_types[relation.src].count
            ends = generator.integers(0, sources, EDGES), generator.integers(0, PAPERS, EDGES)
            writer.topology(relation, *ends)
        writer.features("paper")[:, 0] = np.arange(PAPERS)
        writer.split("train", np.arange(PAPERS))
    return GraphDirectory.open(path, check="shapes")


def measure_peak(graph: Path, out: Path, method: str, *options: str) -> int:
    """Return the peak of memory without files, in bytes, of a process that divides a graph."""
    arguments = ["partition", str(graph), "--out", str(out), "--servers", "3", "--method", method]
    arguments += options if method == "meta" else [*options, "--locality-roots", "0"]
    peak = 0
    with subprocess.Popen(
        [sys.executable, "-m", "hopper.cli", *arguments],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status").read_text()
            match = re.search(r"RssAnon:\s+(\d+) kB", status)
            peak = max(peak, 1024 * int(match[1]) if match else 0)
            # What is measured may need this core.
            time.sleep(0.002)
    assert process.returncode == 0
    return peak


@pytest.mark.parametrize("method", ["random", "stream", "meta"])
def test_memory_stays_below_the_limit(large: GraphDirectory, tmp_path: Path, method: str) -> None:
    limit = parse_size(LIMIT)
    options = ["--tables", "copy"] if method == "meta" else []
    peak = measure_peak(large.path, tmp_path / "out", method, "--memory-limit", LIMIT, *options)
    assert 0 < peak < limit
    if method == "random":
        # Without a limit, arrays with a number for each node stay in memory.
        assert measure_peak(large.path, tmp_path / "free", method) > peak + (32 << 20)
    assert estimate_memory(large, 3, "stream").peak > 1.5 * limit


@pytest.mark.parametrize(
    ("limit", "size"),
    [
        (None, MemoryBudget()),
        (1, MemoryBudget(LEAST_CHUNK, 0)),
        ((256 << 20) + 24 * 3 * LEAST_CHUNK, MemoryBudget(3 * LEAST_CHUNK, 8 * 3 * LEAST_CHUNK)),
        (1 << 40, MemoryBudget(MOST_CHUNK, ((1 << 40) - (256 << 20)) // 3)),
    ],
)
def test_a_limit_chooses_the_size_of_pieces(limit: int | None, size: MemoryBudget) -> None:
    assert choose_pieces(limit) == size


@pytest.mark.parametrize("topology", ["replicated", "halo:1"])
def test_small_pieces_make_the_same_files(
    shared_library: GraphDirectory, tmp_path: Path, topology: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_once = partition_graph(shared_library, tmp_path / "whole", 3, "random", topology=topology)
    # Two edges, and every array of a number a node in a file.
    monkeypatch.setattr(sizes, "LEAST_CHUNK", 64)
    monkeypatch.setattr(build, "choose_pieces", lambda _limit: MemoryBudget(64, 64))
    in_pieces = partition_graph(shared_library, tmp_path / "pieces", 3, "random", topology=topology)
    assert read_division(at_once.path) == read_division(in_pieces.path)
    stream = partition_graph(shared_library, tmp_path / "stream", 3, "stream", topology=topology)
    assert stream.description["balance"]["nodes"] < 1.2


def test_a_check_in_ranges_finds_bad_values(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(1)
    topology = build_topology(*generator.integers(0, 40, (2, 300)), 40, 40)
    relation, root = Relation("node", "edge", "node"), Path("graph")
    bad_degree = topology.out_degrees.copy()
    bad_degree[33] += 1
    repeated_ids = topology.edge_ids.copy()
    repeated_ids[200] = repeated_ids[7]
    monkeypatch.setattr(check_topology, "memory_budget", lambda: MemoryBudget(64, 64))
    check_topology.check_topology(topology, relation, root)
    for name, values, text in (
        ("out_degrees", bad_degree, "out_degrees of .*: of node 33: expected"),
        ("edge_ids", repeated_ids, f"edge_ids of .*: at 200: .*given {int(repeated_ids[7])} twice"),
    ):
        with pytest.raises(GraphError, match=text):
            check_topology.check_topology(replace(topology, **{name: values}), relation, root)
