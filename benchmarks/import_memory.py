"""Imports of tables that are larger than the memory they may take.

usage: python benchmarks/import_memory.py --out DIR [--work DIR] [--edges 100000000] [--memory 2G]

Tables of nodes and edges with integer ids are made, in Parquet and in CSV, and tables of a fifth as
many edges whose ids are texts in no order, which are joined. `hopper dataset import` reads each in
a process of its own, with ``--memory-limit``; meanwhile the resident memory of its processes is
added up, pages that they share counted in each. The first graph is then divided at random by
`hopper partition`, whose memory is measured in the same way and has no bound.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

from hopper.bench.machine import benchmark_header, tell_machine
from hopper.bench.results import format_result
from hopper.config.bounds import parse_size
from hopper.palette import hex_of
from hopper.whole_files import write_text

HOPPER = [sys.executable, "-m", "hopper.cli"]
BLOCK = 1 << 20
DEGREE = 20
IMPORTS = ("parquet", "csv", "parquet, ids are texts")


def make_tables(folder: Path, kind: str, edges: int, *, texts: bool) -> None:
    """Write a table of nodes and one of edges, whose destinations are skewed."""
    import pyarrow
    from pyarrow import csv, parquet

    nodes, generator = max(1, edges // DEGREE), np.random.default_rng(0)
    ids = np.arange(nodes)
    called: Any = pyarrow.array(ids)
    if texts:
        called = pyarrow.array([f"node-{node}" for node in generator.permutation(nodes).tolist()])
    folder.mkdir(parents=True)

    def open_table(name: str, columns: Sequence[str]) -> Any:
        schema = pyarrow.schema([(column, called.type) for column in columns])
        file = str(folder / f"{name}.{kind}")
        return csv.CSVWriter(file, schema) if kind == "csv" else parquet.ParquetWriter(file, schema)

    with open_table("nodes", ["id"]) as table:
        table.write_table(pyarrow.table({"id": called}))
    with open_table("edges", ["src", "dst"]) as table:
        for start in range(0, edges, BLOCK):
            count = min(BLOCK, edges - start)
            src = generator.integers(0, nodes, count)
            dst = (generator.random(count) ** 2 * nodes).astype(np.int64)
            table.write_table(pyarrow.table({"src": called.take(src), "dst": called.take(dst)}))


def run(
    command: Sequence[str],
    log: Path,
    spill: Callable[[], int] = lambda: 0,
    most_seconds: float = float("inf"),
) -> dict[str, float]:
    """Run a command. Return the seconds it takes, and the most memory that its processes have at
    once.

    Parameters
    ----------
    spill: bytes on disk now.
    most_seconds: after which it is ended, and "ended" is 1.
    """
    begun, peak, private, disk = time.monotonic(), 0, 0, 0
    with log.open("wb") as out:
        process = psutil.Popen(command, stdout=out, stderr=subprocess.STDOUT)
        ended = False
        while process.poll() is None:
            infos, processes = [], [process, *_children(process)]
            if time.monotonic() - begun > most_seconds:
                ended = True
                for member in processes:
                    member.kill()
            for member in processes:
                try:
                    infos.append(member.memory_info())
                except psutil.Error:
                    continue
            peak = max(peak, sum(info.rss for info in infos))
            private = max(private, sum(info.rss - info.shared for info in infos))
            disk = max(disk, spill())
            time.sleep(0.05)
    if process.returncode and not ended:
        raise SystemExit(f"{' '.join(command)}: ended with {process.returncode}; see {log}")
    return {
        "ended": int(ended),
        "seconds": time.monotonic() - begun,
        "peak_bytes": peak,
        "private_bytes": private,
        "disk_bytes": disk,
    }


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.Error:
        return []


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Make tables, import them, and divide a graph."""
    work: Path = options.work
    work.mkdir(parents=True)
    results: dict[str, Any] = {}
    free = shutil.disk_usage(work).free
    for name in IMPORTS:
        kind, texts = name.split(",")[0], "texts" in name
        tables, graph = work / "tables", work / "graph"
        edges = options.edges // 5 if texts else options.edges
        make_tables(tables, kind, edges, texts=texts)
        size = sum(file.stat().st_size for file in tables.iterdir())
        free = shutil.disk_usage(work).free
        words = ["dataset", "import", kind, str(tables), "--out", str(graph)]
        words += ["--memory-limit", options.memory]
        log = work / "import.log"
        # Files without a name take space too, so measure the disk.
        usage = run(
            [*HOPPER, *words], log, lambda before=free: before - shutil.disk_usage(work).free
        )
        results[name] = usage | {"edges": edges, "table_bytes": size, "told": _summary_lines(log)}
        shutil.rmtree(tables)
        if name == IMPORTS[0]:
            parts = work / "parts"
            words = ["partition", str(graph), "--servers", "2", "--method", "random"]
            words += ["--out", str(parts)]
            divided = run([*HOPPER, *words], work / "partition.log")
            shutil.rmtree(parts)
        shutil.rmtree(graph)
    return {
        **benchmark_header("import_memory"),
        "bound_bytes": parse_size(options.memory, "--memory"),
        "imports": results,
        "partition": divided,
    }


def _summary_lines(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if line.startswith(("memory:", "edges"))]


def page(result: dict[str, Any]) -> str:
    """Write a page of the result, in Markdown."""
    lines = [
        "# Imports larger than memory",
        "",
        "`python benchmarks/import_memory.py --out DIR`",
        "",
        f"- {result['date']}, commit `{result['commit'][:12]}`; {tell_machine(result['machine'])}",
        f"- `--memory-limit`: {result['bound_bytes'] / 2**20:,.0f} MiB",
        "- resident memory of all processes, pages that they share counted in each",
        "",
        "![Memory](picture.webp)",
        "",
        "| import | edges | tables, MiB | seconds | peak, MiB | of which not of files, MiB "
        "| disk at most, MiB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, row in result["imports"].items():
        sizes = [row[key] / 2**20 for key in ("peak_bytes", "private_bytes", "disk_bytes")]
        lines.append(
            f"| {name} | {row['edges']:,} | {row['table_bytes'] / 2**20:,.0f} | "
            f"{row['seconds']:.1f} | " + " | ".join(f"{size:,.0f}" for size in sizes) + " |"
        )
    divided = result["partition"]
    lines += [
        "",
        f"`hopper partition --method random --servers 2` of the first: {divided['seconds']:.1f} s, "
        f"peak {divided['peak_bytes'] / 2**20:,.0f} MiB, of which not of files "
        f"{divided['private_bytes'] / 2**20:,.0f} MiB.",
        "",
        "What the imports said:",
        "",
        *[f"- {name}: {line}" for name, row in result["imports"].items() for line in row["told"]],
    ]
    return "\n".join([*lines, ""])


def draw(result: dict[str, Any], file: Path) -> None:
    """Draw the memory that each import held, and the bound."""
    figure = Figure((7, 2.4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    names = list(result["imports"])[::-1]
    peaks = [result["imports"][name]["peak_bytes"] / 2**20 for name in names]
    axes.barh(names, peaks, color=hex_of("blue"))
    axes.axvline(result["bound_bytes"] / 2**20, color=hex_of("red"), label="--memory-limit")
    axes.set_xlabel("MiB")
    axes.legend(loc="lower right")
    figure.savefig(file, dpi=110)


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("import-memory-work"))
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--memory", default="2G", help="the imports' --memory-limit")
    options = parser.parse_args(argv)
    result = measure(options)
    options.out.mkdir(parents=True, exist_ok=True)
    write_text(options.out / "result.json", format_result(result))
    write_text(options.out / "README.md", page(result))
    draw(result, options.out / "picture.webp")
    shutil.rmtree(options.work)
    Console().print(page(result), markup=False)
    return 0


if __name__ == "__main__":
    sys.exit(main())
