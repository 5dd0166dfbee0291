"""How many bytes of topology a server stores with a halo, beside partitioned and replicated ones.

usage: python benchmarks/halo_topology.py --graphs DIR,DIR --out DIR [--servers 4] [--hops 3]

Every graph is divided by METIS with halos of 0 hops and more. Writes ``README.md`` and
``result.json``. Times are none of its business.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hopper.bench.machine import commit, machine, versions
from hopper.bench.results import format_result
from hopper.graph.directory import GraphDirectory
from hopper.partition import partition_graph
from hopper.whole_files import write_text


def measure(path: Path, servers: int, hops: int) -> dict[str, Any]:
    """Return what servers store of one graph, by hops of the halo."""
    graph = GraphDirectory.open(path)
    rows = []
    for halo in range(hops + 1):
        with tempfile.TemporaryDirectory(prefix="halo-", dir=path.parent) as folder:
            out = Path(folder) / "parts"
            described = partition_graph(graph, out, servers, topology=f"halo:{halo}").description
        shares = described["per_server"]
        rows.append(
            {
                "halo": halo,
                "edge_cut": described["edge_cut"],
                "replicated_bytes": described["replicated_topology_bytes"],
                "servers": [
                    {
                        "nodes": share["nodes"] + share["halo_nodes"],
                        "edges": share["edges"] + share["halo_edges"],
                        "bytes": share["topology_bytes"],
                    }
                    for share in shares
                ],
            }
        )
    schema = graph.schema
    return {
        "graph": schema.name,
        "nodes": sum(kind.count for kind in schema.node_types.values()),
        "edges": sum(kind.count for kind in schema.relations.values()),
        "halos": rows,
    }


def page(result: dict[str, Any], command: str) -> str:
    """Write a page of the result, in Markdown."""
    host = result["machine"]
    lines = [
        "# Topology that a server stores, with halos",
        "",
        f"`{command}`",
        "",
        f"- {result['date']}, commit `{result['commit'][:12]}`; {host['cpu']}",
        f"- METIS, {result['servers']} servers; means over servers; halo 0 is partitioned topology",
        "",
        "| graph | nodes | edges | edge cut | halo, hops | nodes whose in-edges it stores | edges "
        "| MB of topology | replicated | share |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for graph in result["graphs"]:
        for row in graph["halos"]:
            means = {
                key: sum(share[key] for share in row["servers"]) / len(row["servers"])
                for key in ("nodes", "edges", "bytes")
            }
            lines.append(
                f"| {graph['graph']} | {graph['nodes']:,} | {graph['edges']:,} "
                f"| {row['edge_cut']:.1%} | {row['halo']} | {means['nodes']:,.0f} "
                f"| {means['edges']:,.0f} | {means['bytes'] / 1e6:.1f} "
                f"| {row['replicated_bytes'] / 1e6:.1f} "
                f"| {means['bytes'] / row['replicated_bytes']:.1%} |"
            )
    return "\n".join(lines) + "\n"


def run(graphs: Sequence[Path], out: Path, servers: int, hops: int) -> None:
    """Measure all graphs, and write both files."""
    result = {
        "schema": 1,
        "date": datetime.date.today().isoformat(),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "servers": servers,
        "graphs": [measure(graph, servers, hops) for graph in graphs],
    }
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "result.json", format_result(result))
    names = ",".join(graph.name for graph in graphs)
    command = f"python benchmarks/halo_topology.py --graphs {names} --servers {servers}"
    write_text(out / "README.md", page(result, f"{command} --hops {hops} --out DIR"))


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graphs", required=True, metavar="DIR,DIR,...")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--servers", type=int, default=4)
    parser.add_argument("--hops", type=int, default=3)
    options = parser.parse_args()
    graphs = [Path(path).absolute() for path in options.graphs.split(",")]
    run(graphs, options.out, options.servers, options.hops)
    return 0


if __name__ == "__main__":
    sys.exit(main())
