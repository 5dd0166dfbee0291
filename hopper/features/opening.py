"""Opening a run's graph, with user-defined feature sources where the configuration names them, and
that of a running cluster in a process without its partitioned directory."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from cache_server.client import FeatureClient
from cache_server.draws.neighbor_lists import StoredIds
from cache_server.errors import SourceError
from cache_server.security import PLAIN, Security
from cache_server.store.row_source import CheckedSource, RowSource
from cache_server.store.shard import GRAPH_FILE, PARTITION_FILE
from hopper.config import Config
from hopper.config.plug_ins import PlugIn, find_plug_in
from hopper.errors import ConfigError, RequestError
from hopper.features.remote import map_errors
from hopper.graph.array_file import create_array
from hopper.graph.layout import label_format, split_file, stored_features
from hopper.graph.schema import Labelled, Relation
from hopper.graph.topology import Topology
from hopper.partition import PartitionedGraph
from hopper.partition.description import map_file

_IDS_AT_ONCE: Final = 1 << 20


def open_graph(config: Config, server: int = 0) -> PartitionedGraph:
    """Open a configuration's partitioned directory.

    Where a class provides the features of a node type (``data.features``), the graph's schema has
    that class's width and dtype. A few rows of ``server`` are read, and a :class:`ConfigError`
    tells that a class cannot be found or made, or that its rows differ from what it declares.
    """
    graph = PartitionedGraph.open(config.data.partitioned)
    sources: dict[str, Callable[[int], CheckedSource]] = {}
    node_types = dict(graph.schema.node_types)
    for node_type, name in config.data.features.items():
        key = f"data.features.{node_type}"
        if node_type not in node_types:
            raise ConfigError(f"{key}: expected a node type: {', '.join(node_types)}")
        plug_in: PlugIn[RowSource] = find_plug_in(
            key,
            name,
            RowSource,
            {},
            config.data.features_options.get(node_type, {}),
            ["node_type", "count", "server"],
            options_key=f"data.features_options.{node_type}",
        )
        count = node_types[node_type].count
        # Each server has one source, which is made when it is first asked for.
        make = cache(partial(_make_source, plug_in, name, node_type, count))
        tried = min(server, graph.book.servers - 1)
        source, stored = make(tried), graph.stored(node_type, tried)
        with _naming_the_key():
            source.check(stored.pick(graph.original_ids(node_type)))
        sources[node_type] = make
        node_types[node_type] = replace(
            node_types[node_type],
            feature_dim=source.dim,
            feature_dtype=source.dtype_name,
            feature_error=None,
        )
    graph.feature_sources = sources
    graph.schema = replace(graph.schema, node_types=node_types)
    return graph


def own_server(config: Config) -> int:
    """Return the server of this process's rank, which torchrun's environment tells."""
    return int(os.environ.get("RANK", 0)) // config.cluster.ranks_per_server


def _make_source(
    plug_in: PlugIn[RowSource], name: str, node_type: str, count: int, server: int
) -> CheckedSource:
    with _naming_the_key():
        source = plug_in.make(node_type=node_type, count=count, server=server)
        return CheckedSource(name, node_type, source)


@contextmanager
def _naming_the_key() -> Iterator[None]:
    try:
        yield
    except SourceError as error:
        raise ConfigError(f"data.features: {error}") from error


class GraphElsewhere(PartitionedGraph):
    """A partitioned graph that :func:`download_graph` has made of what a server tells. This process
    stores none of its rows and in-edges: servers hand out rows, and draw neighbors."""

    def topology(self, relation: Relation, server: int | None = None) -> Topology:
        """Make the topology of a server without lists; a RequestError tells what is not here."""
        edges = self.schema.relations[relation]
        if server is None:
            raise _untold(f"the edges of {relation}")
        if edges.feature_dim is not None:
            raise _untold(f"where features of {relation} lie")
        none, degrees = np.empty(0, np.int64), cast(Any, _UntoldDegrees())
        times = none if self.schema.is_timed(relation) else None
        return Topology(
            np.zeros(1, np.int64),
            none,
            none,
            degrees,
            degrees,
            cumulative_weights=none.astype(np.int32) if edges.weighted else None,
            times=times,
            by_time=times,
            stored=self.stored(relation.dst, server),
        )

    def stored(self, table: str, server: int) -> StoredIds:
        """Tell that no row is here."""
        return StoredIds(0, 0)

    def features(self, table: str, server: int) -> NDArray[Any] | None:
        """Make a table of features without rows."""
        stored = stored_features(self.schema.table(table))
        return None if stored is None else np.empty((0, stored.columns), stored.dtype)

    def labels(self, node_type: str, server: int) -> NDArray[Any] | None:
        """Make labels of no nodes."""
        if node_type not in self.schema.labels:
            return None
        dtype, (shape, *_) = label_format(self.schema.labels[node_type], 0)
        return np.empty(shape, dtype)

    def times(self, owner: Labelled) -> NDArray[np.int64]:
        """Refuse to tell times, which no server does."""
        raise _untold(f"the times of {owner}")


class _UntoldDegrees:
    """Stands for an array of degrees."""

    def __getitem__(self, _: object) -> NoReturn:
        raise _untold("degrees")


def _untold(what: str) -> RequestError:
    return RequestError(
        f"connect: servers do not tell {what}; expected the partitioned directory beside their "
        "addresses"
    )


def download_graph(
    addresses: Sequence[str], folder: Path, *, deadline: float = 30.0, security: Security = PLAIN
) -> GraphElsewhere:
    """Write what the first feature server tells of the whole graph to a folder, and open it.

    These are the schema, the offsets, the splits and the maps of ids: all that
    :class:`RemoteRows` and a schedule of roots need. Rows and neighbours stay on the servers. What
    they do not tell are degrees, times of nodes, and where features of edges lie.

    ``addresses`` are "host:port" of every server, in order of server index, and ``deadline`` are
    the seconds that one request may take.

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
            graph = GraphElsewhere.open(folder)
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
