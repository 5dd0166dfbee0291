"""Memory: what is estimated, what is refused, and that ``--memory-limit`` holds while it works."""

import mmap
import os
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from cache_server.available_memory import available_memory, own_groups
from hopper.config.bounds import parse_size
from hopper.errors import GraphError, RequestError
from hopper.graph import array_file, check_topology, memory_budget
from hopper.graph.directory import GraphDirectory
from hopper.graph.memory_budget import LEAST_CHUNK, MOST_CHUNK, MemoryBudget
from hopper.graph.schema import Relation
from hopper.graph.topology import build_topology
from hopper.hetero.divide import divide_graph
from hopper.partition import build, memory, partition_graph
from hopper.partition.checksums import read_division
from hopper.partition.memory import (
    MemoryEstimate,
    choose_pieces,
    estimate_memory,
    format_bytes,
    reciprocity,
)

LIMIT = "288M"
PAPERS, AUTHORS, EDGES = 800_000, 50_000, 500_000
ROOT = Path(__file__).resolve().parents[2]


def test_every_method_has_a_bound_before_it_starts(library, monkeypatch):
    """Division by relation has one too, though it reads the graph in pieces."""
    out, estimates = library.path.parent / "out", list[tuple[MemoryEstimate, int]]()

    def divide(method: str, limit: int) -> None:
        def keep(estimate: MemoryEstimate, available: int) -> None:
            estimates.append((estimate, available))

        divide_graph(library, out, 2, method, memory_limit=limit, on_estimate=keep)

    for method in ("metis", "stream", "random", "meta"):
        advice = "use --method stream" if method == "metis" else "use a machine with more memory"
        text = (
            rf"partitioning by {method} needs about .* of memory \(.*\), 64\.0 MiB are allowed by "
            rf"--memory-limit; {advice}"
        )
        with pytest.raises(RequestError, match=text):
            divide(method, 64 << 20)
    assert all(estimate.peak > 64 << 20 and available > 0 for estimate, available in estimates)
    assert [estimate.disk > 0 for estimate, _ in estimates] == [True, True, True, False]
    files = [file for file in library.path.rglob("*.npy") if file.is_file()]
    assert estimates[2][0].disk >= sum(file.stat().st_size for file in files)
    with monkeypatch.context() as patch:
        patch.setattr(memory, "available_memory", lambda: 1000)
        with pytest.raises(RequestError, match=r"by random needs about .* 1000 B are available"):
            divide("random", 1 << 40)
    assert not out.exists()
    divide("meta", 1 << 30)


def test_an_estimate_grows_with_the_ends_of_the_undirected_graph(make_graph, library):
    generator, peaks = np.random.default_rng(0), []
    for edges in (1000, 100_000):
        graph = make_graph(f"g{edges}", 5000, *generator.integers(0, 5000, (2, edges)), [])
        metis = estimate_memory(graph, 4, "metis", "dgl")
        assert estimate_memory(graph, 4, "random").peak < metis.peak == metis.phases[metis.worst]
        peaks.append(metis.peak)
    # Every edge adds two ends of 72 bytes, adjacency included.
    assert peaks[1] - peaks[0] > 99_000 * 2 * 64
    src, dst = list(range(9)), list(range(1, 10))
    assert reciprocity(make_graph("oneway", 10, src, dst, [])) == 0
    assert reciprocity(make_graph("both", 10, src + dst, dst + src, [])) == 1
    assert reciprocity(make_graph("some", 10, [*src, 1], [*dst, 0], [])) == pytest.approx(0.2)
    assert 0 < reciprocity(library) < 1


def test_available_memory_is_what_the_control_group_and_the_environment_leave(
    tmp_path, monkeypatch
):
    assert available_memory([tmp_path]) > 6000
    (tmp_path / "memory.current").write_text("7000\n")
    (tmp_path / "memory.max").write_text("12000\n")
    (tmp_path / "memory.stat").write_text("anon 6000\nfile 1900\nshmem 900\n")
    assert available_memory([tmp_path]) == 6000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory([tmp_path]) > 6000
    older = tmp_path / "older"
    older.mkdir()
    (older / "memory.usage_in_bytes").write_text("7000\n")
    (older / "memory.limit_in_bytes").write_text("12000\n")
    (older / "memory.stat").write_text("cache 1\ntotal_cache 700\ntotal_shmem 200\n")
    assert available_memory([tmp_path, older]) == 5500
    groups = own_groups()
    assert len(set(groups)) == len(groups)
    assert available_memory() == pytest.approx(available_memory(groups), rel=0.2)
    # Whoever starts a process may limit its memory.
    used = psutil.Process().memory_info().rss - psutil.Process().memory_info().shared
    monkeypatch.setenv("HOPPER_MEMORY_LIMIT", str(used + (64 << 20)))
    assert available_memory([]) == pytest.approx(64 << 20, abs=32 << 20)
    monkeypatch.setenv("HOPPER_MEMORY_LIMIT", "1000")
    assert available_memory([]) == 0


def test_sizes_have_units_and_a_limit_chooses_the_size_of_pieces():
    sizes = {"5": 5, "2K": 2048, "1.5M": 1572864, "16GiB": 16 << 30, " 1 tb ": 1 << 40}
    assert {text: parse_size(text) for text in sizes} == sizes
    for text in ("", "many", "-1G", "5X", "1.2.3G"):
        with pytest.raises(RequestError, match="size: expected a number and a unit"):
            parse_size(text)
    printed = ["12 B", "2.0 KiB", "3.0 MiB", "5120.00 GiB"]
    assert [format_bytes(n) for n in (12, 2048, 3 << 20, 5 << 40)] == printed
    assert choose_pieces(None) == MemoryBudget()
    assert choose_pieces(1) == MemoryBudget(LEAST_CHUNK, 0)
    room = 24 * 3 * LEAST_CHUNK
    assert choose_pieces((256 << 20) + room) == MemoryBudget(3 * LEAST_CHUNK, room // 3)
    assert choose_pieces(1 << 40) == MemoryBudget(MOST_CHUNK, ((1 << 40) - (256 << 20)) // 3)


def test_a_check_releases_the_pages_that_it_read(make_graph, monkeypatch):
    """The pages of a topology that are in memory stay few, however large it is."""
    edges, block, peak_by_file = 300_000, 1 << 17, dict[str, int]()
    ends = np.random.default_rng(0).integers(0, 30_000, (2, edges))
    path = make_graph("large", 30_000, *ends, []).path
    mapped = re.compile(rb"^([0-9a-f]+)-([0-9a-f]+) .* (%b/.*)$" % re.escape(bytes(path)), re.M)

    def resident() -> dict[str, int]:
        # The kernel's sums in smaps are of everything that this process has mapped, and take long.
        sizes: dict[str, int] = {}
        with open("/proc/self/pagemap", "rb", buffering=0) as pages:
            for start, end, file in mapped.findall(Path("/proc/self/maps").read_bytes()):
                first, last = (int(address, 16) // mmap.PAGESIZE for address in (start, end))
                pages.seek(8 * first)
                entries = np.frombuffer(pages.read(8 * (last - first)), np.uint64)
                name = Path(file.decode()).name
                # The highest bit of an entry tells that the page is in memory.
                size = mmap.PAGESIZE * int((entries >> np.uint64(63)).sum())
                sizes[name] = sizes.get(name, 0) + size
        return sizes

    def release(*arrays: Any) -> None:
        for name, size in resident().items():
            peak_by_file[name] = max(peak_by_file.get(name, 0), size)
        array_file_release(*arrays)

    array_file_release = array_file.release_pages
    monkeypatch.setattr(array_file, "BLOCK_BYTES", block)
    monkeypatch.setattr(memory_budget, "EDGES_AT_ONCE", block // 8)
    for module in (array_file, check_topology):
        monkeypatch.setattr(module, "release_pages", release)
    GraphDirectory.open(path)
    # The kernel maps some pages around those that are read.
    for name in ("indices.npy", "edge_ids.npy"):
        assert 0 < peak_by_file[name] < 4 * block < edges * 8 // 4


@pytest.fixture(scope="module")
def large(tmp_path_factory) -> GraphDirectory:
    """Many nodes, whose arrays take more than the limit has room for, in two types."""
    counts, generator = {"paper": PAPERS, "author": AUTHORS}, np.random.default_rng(0)
    edges = {
        (name, "to", "paper"): np.stack([generator.integers(0, n, EDGES) for n in (count, PAPERS)])
        for name, count in counts.items()
    }
    return GraphDirectory.from_arrays(
        tmp_path_factory.mktemp("large") / "graph",
        edges,
        features={"paper": np.ones((PAPERS, 4), np.float32)},
        splits={"train": np.arange(PAPERS)},
        counts=counts,
        target="paper",
    )


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
def test_memory_stays_below_the_limit(large, tmp_path, method):
    limit = parse_size(LIMIT)
    options = ["--tables", "copy"] if method == "meta" else []
    peak = measure_peak(large.path, tmp_path / "out", method, "--memory-limit", LIMIT, *options)
    assert 0 < peak < limit
    assert estimate_memory(large, 3, "stream").peak > 1.5 * limit


@pytest.mark.parametrize("topology", ["replicated", "partitioned"])
def test_small_pieces_make_the_same_files(shared_library, tmp_path, topology, monkeypatch):
    def divide(method: str) -> Any:
        out = tmp_path / f"{method}-{len(list(tmp_path.iterdir()))}"
        return partition_graph(shared_library, out, 3, method, topology=topology)

    at_once = divide("random")
    # Two edges, and every array of a number a node in a file.
    monkeypatch.setattr(memory_budget, "LEAST_CHUNK", 64)
    monkeypatch.setattr(build, "choose_pieces", lambda _limit: MemoryBudget(64, 64))
    assert read_division(at_once.path) == read_division(divide("random").path)
    assert divide("stream").description["balance"]["nodes"] < 1.2


def test_a_check_in_ranges_finds_bad_values(monkeypatch):
    topology = build_topology(*np.random.default_rng(1).integers(0, 40, (2, 300)), 40, 40)
    relation, root = Relation("node", "edge", "node"), Path("graph")
    bad_degrees, repeated_ids = topology.out_degrees.copy(), topology.edge_ids.copy()
    bad_degrees[33] += 1
    repeated_ids[200] = repeated_ids[7]
    monkeypatch.setattr(check_topology, "memory_budget", lambda: MemoryBudget(64, 64))
    check_topology.check_topology(topology, relation, root)
    for name, values, text in (
        ("out_degrees", bad_degrees, "out_degrees of .*: of node 33: expected"),
        ("edge_ids", repeated_ids, f"edge_ids of .*: at 200: .*given {int(repeated_ids[7])} twice"),
    ):
        with pytest.raises(GraphError, match=text):
            check_topology.check_topology(replace(topology, **{name: values}), relation, root)
