"""Opening the graph of a running cluster in a process without its partitioned directory."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from cache_server.client import FeatureClient
from cache_server.security import PLAIN, Security
from cache_server.store.graph_files import GRAPH_FILE, ID_KINDS, PARTITION_FILE, ids_file
from hopper.errors import ClusterError
from hopper.features.remote import map_errors
from hopper.partition import PartitionedGraph

_NAME: Final = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9_.+-]*")
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
    ServerLost, DeadlineExceeded, ClusterError: the server cannot be asked, or has no such files.
    GraphError: what it tells is malformed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with map_errors(), FeatureClient(addresses, deadline=deadline, security=security) as client:
        description = client.describe_graph()
        (folder / GRAPH_FILE).write_text(description.graph, encoding="utf-8")
        (folder / PARTITION_FILE).write_text(description.partition, encoding="utf-8")
        for array in description.ids:
            kind, name, count = array.kind, array.type, array.count
            if kind == "edge_ids":
                continue
            # The server chooses the names, and may not choose where files are written.
            if kind not in ID_KINDS or not _NAME.fullmatch(name):
                raise ClusterError(f"feature server 0 at {addresses[0]}: {kind} of {name!r:.100}")
            file = ids_file(folder, kind, name)
            file.parent.mkdir(parents=True, exist_ok=True)
            ids = np.lib.format.open_memmap(file, "w+", np.int64, (count,))
            for first in range(0, count, _IDS_AT_ONCE):
                part = ids[first : first + _IDS_AT_ONCE]
                part[:] = client.read_ids(kind, name, first, part.size)
            ids.flush()
    return PartitionedGraph.open(folder)
