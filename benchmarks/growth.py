"""What an iteration sends as servers become more: bytes, messages, waits.

usage: python -m benchmarks.growth --out DIR [--servers 4,16,64] [--engines A,B]
           [--iterations 2] [--batch-size 64] [PRESET:SCALE]

Every server has one rank, and every rank the same number of roots, so the work grows with the
servers. All ranks are threads of this process, as for `hopper plan`, and take the engines' own
steps. A cell is a number of servers and an engine. Its lines are means over ranks and iterations:
MB sent to other servers; messages to other ranks, where a collective of N ranks counts N - 1 for
each of them, a ring 2 (N - 1); requests to feature servers; and collectives and messages that a
rank waits for.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from benchmarks.partitioners import open_graph as make_graph
from benchmarks.processor_seconds import train_batch
from benchmarks.rounds import Results, make_parser, positive
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_schedule
from hopper.engines.build import make_engine, make_learnable
from hopper.features import PartitionedRows, open_graph
from hopper.graph import GraphDirectory
from hopper.partition import partition_graph
from hopper.rehearsal.clock import Link, RankClock
from hopper.rehearsal.world import ThreadCluster, rehearse
from hopper.timing.run_log import RunLog
from hopper.train.rank import make_deterministic

ENGINES = "model_centric,zero_hop,hop,cooperative"
GRAPH = "products-like:0.2"


class _Counted:
    """Counts what one rank's clock is told."""

    def __init__(self, clock: RankClock) -> None:
        self.counts = Counter[str]()
        self._begin, self._fetch = clock.begin, clock.fetch
        clock.begin, clock.fetch = self.begin, self.fetch  # type: ignore[method-assign]

    def begin(self, sizes: Mapping[int, float], steps: int = 1, ends: int = 2, **more: Any) -> Any:
        """Count messages to other ranks."""
        self.counts["messages"] += steps * len(sizes)
        self.counts["waits"] += 1
        return self._begin(sizes, steps, ends, **more)

    def fetch(self, requests: int, nbytes: float) -> None:
        """Count requests to feature servers."""
        self.counts["requests"] += requests
        self.counts["waits"] += 1
        self._fetch(requests, nbytes)


def count(request: Request, iterations: int) -> dict[str, float]:
    """Train some iterations; return a rank's means, by measure."""
    schedule = make_schedule(request)

    def work(cluster: ThreadCluster, rows: PartitionedRows) -> Counter[str]:
        assert cluster.rank_clock is not None
        counted = _Counted(cluster.rank_clock)
        engine = make_engine(request, cluster, rows, RunLog(), make_learnable(request, cluster))
        with closing(engine):
            cluster.traffic.take()
            counted.counts.clear()
            for number in range(iterations):
                train_batch(engine, rows, schedule.batch(0, number))
            counted.counts["bytes"] = sum(cluster.traffic.take().values())
            return counted.counts

    ranks = rehearse(request, work, Link())
    total = sum(ranks, Counter[str]())
    return {name: total[name] / iterations / len(ranks) for name in total}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("graph", nargs="?", metavar="PRESET:SCALE", default=GRAPH)
    parser.add_argument("--servers", default="4,16,64", metavar="N,N,...")
    parser.add_argument("--engines", default=ENGINES, metavar="A,B,...")
    parser.add_argument("--iterations", type=positive, default=2)
    parser.add_argument("--batch-size", type=positive, default=64, help="roots of each rank")
    options = parser.parse_args(arguments)
    make_deterministic()
    results = Results("growth", options.out)
    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        graph = GraphDirectory.open(make_graph(options.graph, Path(folder)))
        for servers in map(int, options.servers.split(",")):
            parts = Path(folder) / str(servers)
            partition_graph(graph, parts, servers)
            for engine in options.engines.split(","):
                values = {
                    "data": {"partitioned": str(parts)},
                    "model": {"name": "sage", "layers": 2, "hidden": 16},
                    "sampler": {"fanouts": [10, 10]},
                    "train": {"engine": engine, "batch_size": options.batch_size, "threads": 1},
                    "hop": {"merge": "off"},
                }
                config = make_config(values)
                counts = count(Request(config, open_graph(config)), options.iterations)
                facts = [(engine, "MB of a rank", counts["bytes"] / 1e6)]
                for name in ("messages", "requests", "waits"):
                    facts.append((engine, f"{name} of a rank", counts.get(name, 0.0)))
                results.add(f"{servers} servers, {engine}", {}, facts=facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
