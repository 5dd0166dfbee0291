"""The memory estimate: what it says, and what it refuses."""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from cache_server.available_memory import available_memory, own_groups
from hopper.config.bounds import parse_size
from hopper.errors import RequestError
from hopper.graph import array_file, check_topology, memory_budget, publish
from hopper.graph.directory import GraphDirectory
from hopper.hetero.divide import divide_graph
from hopper.partition import build, divide_topology, partition_graph
from hopper.partition.memory import (
    MemoryEstimate,
    estimate_memory,
    format_bytes,
    reciprocity,
)

MakeGraph = Callable[..., GraphDirectory]


def test_too_little_memory_is_refused_with_advice(
    library: GraphDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = library.path.parent / "out"
    estimates: list[tuple[MemoryEstimate, int]] = []
    with pytest.raises(
        RequestError,
        match=r"by metis needs about .* of memory \(.*\), 1.0 MiB are allowed by --memory-limit; "
        "use --method stream",
    ):
        partition_graph(
            library,
            out,
            2,
            memory_limit=1 << 20,
            on_estimate=lambda *arguments: estimates.append(arguments),
        )
    assert estimates[0][0].peak > 1 << 20
    assert estimates[0][1] > 0
    monkeypatch.setattr(build, "available_memory", lambda: 1000)
    with pytest.raises(RequestError, match=r"by random needs about .* 1000 B are available"):
        partition_graph(library, out, 2, "random", memory_limit=1 << 40)
    assert not out.exists()


def test_estimate_grows_with_edges_and_random_needs_less(make_graph: MakeGraph) -> None:
    generator = np.random.default_rng(0)
    peaks = []
    for edges in (1000, 100_000):
        src, dst = generator.integers(0, 5000, (2, edges))
        graph = make_graph(f"g{edges}", 5000, src, dst, [])
        random = estimate_memory(graph, 4, "random").peak
        metis = estimate_memory(graph, 4, "metis", "dgl")
        assert random < metis.peak == metis.phases[metis.worst]
        peaks.append(metis.peak)
    # Every edge adds two ends of 72 bytes, adjacency included.
    assert peaks[1] - peaks[0] > 99_000 * 2 * 64


def test_a_halo_that_the_disk_cannot_hold_is_refused(
    library: GraphDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = library.path.parent / "out"
    needed_bytes: list[int] = []

    def require_space(_folder: Path, needed: int) -> None:
        needed_bytes.append(needed)
        if len(needed_bytes) == 2:
            raise RequestError(f"too little disk space: {needed} needed")

    monkeypatch.setattr(publish, "require_space", require_space)
    monkeypatch.setattr(divide_topology, "require_space", require_space)
    with pytest.raises(RequestError, match="too little disk space"):
        partition_graph(library, out, 2, "random", topology="halo:1")
    assert not out.exists()
    # Once halos are known, the lists of all servers are, beside those of the largest relation.
    needed = needed_bytes[-1]
    monkeypatch.undo()
    parts = partition_graph(library, out, 2, "random", topology="halo:1")
    lists = [
        file.stat().st_size
        for server in range(2)
        for file in (parts.path / f"server-{server}" / "topology").rglob("*.npy")
    ]
    replicated_bytes = parts.description["replicated_topology_bytes"]
    assert max(0, sum(lists) - replicated_bytes) < needed <= sum(lists)


def test_reciprocity_counts_reversed_edges(make_graph: MakeGraph, library: GraphDirectory) -> None:
    src, dst = list(range(9)), list(range(1, 10))
    assert reciprocity(make_graph("oneway", 10, src, dst, [])) == 0
    assert reciprocity(make_graph("both", 10, src + dst, dst + src, [])) == 1
    assert reciprocity(make_graph("some", 10, [*src, 1], [*dst, 0], [])) == pytest.approx(0.2)
    assert 0 < reciprocity(library) < 1


def test_available_memory_is_that_of_the_control_group_if_less(tmp_path: Path) -> None:
    machine = available_memory([tmp_path])
    assert machine > 6000
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


def test_the_environment_may_limit_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever starts a process may limit its memory by HOPPER_MEMORY_LIMIT."""
    memory = psutil.Process().memory_info()
    used = memory.rss - memory.shared
    monkeypatch.setenv("HOPPER_MEMORY_LIMIT", str(used + (64 << 20)))
    assert available_memory([]) == pytest.approx(64 << 20, abs=32 << 20)
    monkeypatch.setenv("HOPPER_MEMORY_LIMIT", "1000")
    assert available_memory([]) == 0


def test_control_groups_are_those_of_this_process() -> None:
    groups = own_groups()
    assert len(set(groups)) == len(groups)
    assert available_memory() == pytest.approx(available_memory(groups), rel=0.2)


@pytest.mark.parametrize(
    ("text", "size"),
    [("5", 5), ("2K", 2048), ("1.5M", 1572864), ("16GiB", 16 << 30), (" 1 tb ", 1 << 40)],
)
def test_sizes_are_parsed(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "many", "-1G", "5X", "1.2.3G"])
def test_unreadable_sizes_are_refused(text: str) -> None:
    with pytest.raises(RequestError, match="size: expected a number and a unit"):
        parse_size(text)


def test_sizes_are_printed_with_units() -> None:
    assert [format_bytes(n) for n in (12, 2048, 3 << 20, 5 << 40)] == [
        "12 B",
        "2.0 KiB",
        "3.0 MiB",
        "5120.00 GiB",
    ]


def test_every_method_has_a_bound_before_it_starts(library: GraphDirectory) -> None:
    """Division by relation has one too, though it reads the graph in pieces."""
    out, estimates = library.path.parent / "out", list[tuple[MemoryEstimate, int]]()
    for method in ("metis", "stream", "random", "meta"):
        text = rf"partitioning by {method} needs about .* 64\.0 MiB are allowed by --memory-limit"
        with pytest.raises(RequestError, match=text):
            divide_graph(
                library, out, 2, method,
                memory_limit=64 << 20, on_estimate=lambda *arguments: estimates.append(arguments),
            )  # fmt: skip
    assert not out.exists()
    assert [estimate.disk > 0 for estimate, _ in estimates] == [True, True, True, False]
    assert estimates[2][0].disk >= sum(
        file.stat().st_size for file in library.path.rglob("*.npy") if file.is_file()
    )
    divide_graph(library, out, 2, "meta", memory_limit=1 << 30)


def test_a_check_releases_the_pages_that_it_read(
    make_graph: MakeGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages of a topology that are in memory stay few, however large it is."""
    edges = 300_000
    ends = np.random.default_rng(0).integers(0, 30_000, (2, edges))
    path = make_graph("large", 30_000, *ends, []).path
    block, peak_by_file = 1 << 17, dict[str, int]()
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
    assert {"indices.npy", "edge_ids.npy"} <= peak_by_file.keys()
    # The kernel maps some pages around those that are read.
    for name in ("indices.npy", "edge_ids.npy"):
        assert peak_by_file[name] < 4 * block < edges * 8 // 4
