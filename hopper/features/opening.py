"""Opening a run's graph, with user-defined feature sources where the configuration names them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial

from cache_server.errors import SourceError
from cache_server.store.row_source import CheckedSource, RowSource
from hopper.config import Config
from hopper.config.plug_ins import PlugIn, find_plug_in
from hopper.errors import ConfigError
from hopper.partition import PartitionedGraph


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
            *(key, name, RowSource, {}, config.data.features_options.get(node_type, {})),
            ["node_type", "count", "server"],
            options_key=f"data.features_options.{node_type}",
        )
        count = node_types[node_type].count
        # Each server has one source, which is made when it is first asked for.
        make = cache(partial(_make_source, plug_in, name, node_type, count))
        tried = min(server, graph.book.servers - 1)
        source, stored = make(tried), graph.stored(node_type, tried)
        nodes = slice(stored.first, stored.stop) if stored.ids is None else stored.ids
        with _naming_the_key():
            source.check(graph.original_ids(node_type)[nodes])
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
    source = plug_in.make(node_type=node_type, count=count, server=server)
    with _naming_the_key():
        return CheckedSource(name, node_type, source)


@contextmanager
def _naming_the_key() -> Iterator[None]:
    try:
        yield
    except SourceError as error:
        raise ConfigError(f"data.features: {error}") from error
