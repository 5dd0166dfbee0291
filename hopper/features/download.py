"""Opening the graph of a running cluster in a process without its partitioned directory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from cache_server.client import FeatureClient
from cache_server.security import PLAIN, Security
from cache_server.store.graph_files import GRAPH_FILE, PARTITION_FILE
from hopper.features.remote import map_errors
from hopper.graph.array_file import create_array
from hopper.graph.layout import split_file
from hopper.partition import PartitionedGraph
from hopper.partition.description import map_file

_IDS_AT_ONCE: Final = 1 << 20


def download_graph(
    addresses: Sequence[str], folder: Path, *, deadline: float = 30.0, security: Security = PLAIN
) -> PartitionedGraph:
    """Write what the first feature server tells of the whole graph to a folder, and open it.

    These are the schema, the offsets, the splits and the maps of ids: all that
    :class:`RemoteRows` and a schedule of roots need. Rows and neighbours stay on the servers.

    Parameters
    ----------
    addresses: "host:port" of every server, in order of server index.
    deadline: seconds that one request may take.
    security: certificates and token of the connections.

    Raises
    ------
    ServerLost, DeadlineExceeded, ClusterError: a server cannot be asked, is of another division
        than the first one, or has no such files.
    GraphError: what the server tells is malformed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    make_client = partial(FeatureClient, addresses, deadline=deadline, security=security)
    with map_errors():
        with make_client() as client:
            division = client.describe(0).division
        with make_client(division=division) as client:
            client.wait_until_serving(deadline)
            description = client.describe_graph()
            (folder / GRAPH_FILE).write_text(description.graph, encoding="utf-8")
            (folder / PARTITION_FILE).write_text(description.partition, encoding="utf-8")
            # Names and sizes are those of a checked schema, not what a server chooses.
            graph = PartitionedGraph.open(folder)
            for name, count in graph.schema.splits.items():
                _download(client, "splits", name, split_file(folder, name), count)
            for name, node_type in graph.schema.node_types.items():
                for kind in ("original_ids", "global_ids"):
                    _download(client, kind, name, map_file(folder, name, kind), node_type.count)
    return graph


def _download(client: FeatureClient, kind: str, name: str, file: Path, count: int) -> None:
    ids = create_array(file, np.int64, (count,))
    for first in range(0, count, _IDS_AT_ONCE):
        part = ids[first : first + _IDS_AT_ONCE]
        part[:] = client.read_ids(kind, name, first, part.size)
