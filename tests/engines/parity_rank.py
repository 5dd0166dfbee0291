"""One rank of a world that trains many small configurations in turn; not a test by itself."""

import json
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from cache_server.client import FeatureClient
from cache_server.client.in_process import InProcessClient, open_servicers
from cache_server.service.servicer import FeatureServicer
from cache_server.store.row_source import SourceRequest
from hopper.cluster.cluster import Cluster
from hopper.config import Config, Data, make_config
from hopper.device.choice import choose_device
from hopper.engines import Request
from hopper.features import PartitionedRows, RemoteRows, open_graph
from hopper.partition import PartitionedGraph
from hopper.train.rank import make_deterministic, make_trainer, use_threads


def train_as_rank(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Train configurations as a rank that is a process; the first one's device is that of all."""
    use_threads(1)
    make_deterministic()
    first = make_config(cases[0])
    through_host = first.cluster.share_gpus
    device = "cuda" if first.train.device == "cuda" else "cpu"
    cluster = Cluster.join(
        first.cluster.ranks_per_server,
        choose_device(device, share_gpus=through_host),
        timeout=60,
        start_timeout=120,
        through_host=through_host,
    )
    results = train_in_turn(list(map(make_config, cases)), cluster)
    cluster.leave()
    return results


def train_in_turn(configs: Sequence[Config], cluster: Cluster) -> list[dict[str, Any]]:
    """Train configurations in turn as one rank, and return its results of each.

    Where a configuration names no servers, they are in this process.
    """
    results = []
    for config in configs:
        graph, remote = open_once(config, cluster.server), None
        if graph.book.servers > 1 and graph.layout.reads_remote_rows:
            addresses = config.cluster.servers
            connect: Callable[..., FeatureClient] = FeatureClient
            if not addresses:
                addresses = [f"server {server}" for server in range(graph.book.servers)]
                connect = partial(InProcessClient, _servicers(config.data.model_dump_json()))
            remote = RemoteRows(graph, addresses, 60, connect, wire=config.cluster.feature_wire)
        rows = PartitionedRows(graph, cluster.server, remote, cluster.traffic)
        cluster.through_host = config.cluster.share_gpus
        trainer = make_trainer(Request(config, graph), cluster, rows)
        try:
            trainer.run()
        finally:
            trainer.engine.state.log.close()
        trained = [
            json.loads(line)
            for line in Path(config.train.run_dir, "epochs.jsonl").read_text().splitlines()
        ]
        results.append(
            {
                "losses": [loss for epoch in trained for loss in epoch["iteration_losses"]],
                "val": [epoch["val"] for epoch in trained],
                "bytes": trained[-1]["bytes"],
                "rows": trained[-1]["rows"],
                "lookups": trained[-1]["lookups"],
            }
        )
        cluster.arrive("the end of a case")
        if remote is not None:
            remote.close()
    return results


def open_once(config: Config, server: int = 0) -> PartitionedGraph:
    """Open a configuration's graph as :func:`open_graph` does. Cases and ranks share what is mapped
    of it."""
    return _open(config.data.model_dump_json(), server if config.data.features else 0)


@cache
def _open(data: str, server: int) -> PartitionedGraph:
    graph = open_graph(make_config({"data": json.loads(data)}), server)
    # It would forget topologies that nobody reads at the moment.
    graph.layout._topologies = {}  # type: ignore[assignment]
    return graph


@cache
def _servicers(data: str) -> list[FeatureServicer]:
    """Open what the servers of a configuration's data answer with."""
    settings = Data.model_validate_json(data)
    sources = {
        node_type: SourceRequest(name, settings.features_options.get(node_type, {}))
        for node_type, name in settings.features.items()
    }
    folders = sorted(Path(settings.partitioned).glob("server-*"))
    return open_servicers(folders, sources)
