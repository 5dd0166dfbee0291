"""From tables to a partitioned directory in bounded memory, beside DGL's partition_graph.

usage: python benchmarks/construction.py --out DIR [--work DIR] [--edges 100000000] [--memory 2G]
       [--servers 4] [--most-seconds 240]

Tables of nodes and edges in Parquet (20 edges a node, destinations skewed, no features) are
imported and the graph is divided, by `random` and by `stream`, both under ``--memory-limit``; then
at random by tasks of Ray, one and two at a time, if Ray is installed. DGL divides the same graph at
random and by METIS, each where this machine has the memory that it is expected to take; a run is
ended after ``--most-seconds``. Each is a process of its own, whose resident memory, with that of
its children, is added up, pages that they share counted in each. Files of the three divisions at
random are compared.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.import_memory import DEGREE, HOPPER, make_tables, run  # noqa: E402
from cache_server.available_memory import available_memory  # noqa: E402
from hopper.bench.machine import benchmark_header, tell_machine  # noqa: E402
from hopper.bench.results import format_result  # noqa: E402
from hopper.config.bounds import parse_size  # noqa: E402
from hopper.palette import hex_of  # noqa: E402
from hopper.partition.checksums import read_division  # noqa: E402
from hopper.whole_files import write_text  # noqa: E402

IMPORT = "import"
RANDOM, STREAM = "hopper random", "hopper stream"
RAY = {"hopper random, Ray, 1 worker": 1, "hopper random, Ray, 2 workers": 2}
# Expected bytes for each edge by method, from runs on two million edges.
DGL = {"DGL random": ("random", 200), "DGL METIS": ("metis", 300)}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Make tables, import them, and divide the graph by every method."""
    work: Path = options.work
    tables, graph, results = work / "tables", work / "graph", dict[str, Any]()
    make_tables(tables, "parquet", options.edges, texts=False)
    table_bytes = sum(file.stat().st_size for file in tables.iterdir())
    words = ["dataset", "import", "parquet", str(tables), "--out", str(graph)]
    limit = ["--memory-limit", options.memory]
    results[IMPORT] = run([*HOPPER, *words, *limit], work / "import.log")
    shutil.rmtree(tables)
    results[RANDOM] = divide(options, graph, "random")
    results[STREAM] = divide(options, graph, "stream")
    for name, count in RAY.items():
        if importlib.util.find_spec("ray") is None:
            results[name] = {"left_out": "Ray is not installed"}
        else:
            results[name] = divide(options, graph, "random", "--on", "ray", "--workers", str(count))
    for name, (method, edge_bytes) in DGL.items():
        results[name] = divide_by_dgl(options, graph, method, edge_bytes)
    return {
        **benchmark_header("construction"),
        "edges": options.edges,
        "nodes": max(1, options.edges // DEGREE),
        "servers": options.servers,
        "table_bytes": table_bytes,
        "bound_bytes": parse_size(options.memory, "--memory"),
        "runs": results,
    }


def divide(options: argparse.Namespace, graph: Path, method: str, *words: str) -> dict[str, Any]:
    """Divide a graph by `hopper partition` under the limit. Return what it took and made."""
    out, log = options.work / "parts", options.work / "partition.log"
    command = [*HOPPER, "partition", str(graph), "--servers", str(options.servers), "--method"]
    command += [method, "--out", str(out), "--memory-limit", options.memory]
    measured: dict[str, Any] = run([*command, "--locality-roots", "0", *words], log)
    estimate = re.search(r"time: about (\d+) s", log.read_text())
    measured["expected_seconds"] = int(estimate[1]) if estimate else None
    measured["division"] = read_division(out)
    shutil.rmtree(out)
    return measured


def divide_by_dgl(
    options: argparse.Namespace, graph: Path, method: str, edge_bytes: int
) -> dict[str, Any]:
    """Divide a graph by DGL, or say why that is not possible."""
    if importlib.util.find_spec("dgl") is None:
        return {"left_out": "DGL is not installed"}
    required, available = options.edges * edge_bytes, available_memory()
    if required > available:
        left_out = (
            f"about {required / 2**30:.1f} GiB expected, {available / 2**30:.1f} GiB available"
        )
        return {"left_out": left_out}
    script, out = ROOT / "benchmarks" / "peers" / "distdgl_partition.py", options.work / "dgl"
    command = [sys.executable, str(script), str(graph), str(out), method, str(options.servers)]
    division = run(command, options.work / "dgl.log", most_seconds=options.most_seconds)
    shutil.rmtree(out, ignore_errors=True)
    return division


def page(result: dict[str, Any]) -> str:
    """Write a page of the result, in Markdown."""
    runs = result["runs"]
    lines = [
        "# Construction in bounded memory",
        "",
        "`python benchmarks/construction.py --out DIR`",
        "",
        f"- {result['date']}, commit `{result['commit'][:12]}`; {tell_machine(result['machine'])}",
        f"- {result['edges']:,} edges, {result['nodes']:,} nodes, no features, "
        f"{result['table_bytes'] / 2**20:,.0f} MiB of Parquet; {result['servers']} servers",
        f"- `--memory-limit`: {result['bound_bytes'] / 2**20:,.0f} MiB a process; DGL has none",
        "- resident memory of all processes, pages that they share counted in each",
        "",
        "![Memory and time](picture.webp)",
        "",
        "| | seconds | expected | peak, MiB | of which not of files, MiB |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, row in runs.items():
        if "left_out" in row:
            lines.append(f"| {name} | left out: {row['left_out']} | | | |")
            continue
        sizes = [row[key] / 2**20 for key in ("peak_bytes", "private_bytes")]
        seconds = f"ended after {row['seconds']:.0f}" if row["ended"] else f"{row['seconds']:.1f}"
        expected = row.get("expected_seconds")
        lines.append(
            f"| {name} | {seconds} | {'' if expected is None else expected} | "
            + " | ".join(f"{size:,.0f}" for size in sizes)
            + " |"
        )
    divisions = [runs[name]["division"] for name in (RANDOM, *RAY) if "division" in runs[name]]
    same_text = "the same, byte for byte" if len(set(divisions)) == 1 else "NOT the same"
    lines += ["", f"Files of {len(divisions)} divisions by `hopper random`: {same_text}."]
    return "\n".join([*lines, ""])


def draw(result: dict[str, Any], file: Path) -> None:
    """Draw memory and seconds of each run that ended by itself, and the bound."""
    cells = {
        name: row
        for name, row in reversed(result["runs"].items())
        if "left_out" not in row and not row["ended"]
    }
    figure = Figure((9, 3), layout="constrained")
    FigureCanvasAgg(figure)
    memory, seconds = figure.subplots(1, 2, sharey=True)
    private = [row["private_bytes"] / 2**20 for row in cells.values()]
    memory.barh(list(cells), private, color=hex_of("blue"))
    memory.axvline(result["bound_bytes"] / 2**20, color=hex_of("red"), label="--memory-limit")
    memory.set_xlabel("MiB that are not of files")
    memory.legend(loc="lower right")
    seconds.barh(list(cells), [row["seconds"] for row in cells.values()], color=hex_of("blue"))
    seconds.set_xlabel("seconds")
    figure.savefig(file, dpi=110)


def main(argv: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--work", type=Path, default=Path("construction-work"))
    parser.add_argument("--edges", type=int, default=100_000_000)
    parser.add_argument("--memory", default="2G", help="--memory-limit of all but DGL")
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--most-seconds", type=float, default=240, help="of a run of DGL")
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
