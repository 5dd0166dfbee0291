"""Opening a run's graph, with user-defined feature sources where the configuration names them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from cache_server.errors import SourceError
from cache_server.store.row_source import CheckedSource, RowSource
from hopper.config import Config
from hopper.errors import ConfigError
from hopper.partition import PartitionedGraph
from hopper.plug_ins import PlugIn, find_plug_in


def open_graph(config: Config, server: int = 0) -> PartitionedGraph:
    """Open a configuration's partitioned directory.

    Where a class provides the features of a node type (``data.features``), the graph's schema has
    that class's width and dtype.

    Parameters
    ----------
    server: the server of which a few rows are read, to check the sources.

    Raises
    ------
    GraphError: the directory cannot be opened (:meth:`hopper.partition.PartitionedGraph.open`).
    ConfigError: a source cannot be found or made, or its rows differ from what it declares.
    """
    graph = PartitionedGraph.open(config.data.partitioned)
    sources: dict[str, Callable[[int], CheckedSource]] = {}
    node_types = dict(graph.schema.node_types)
    for node_type, name in config.data.features.items():
        key = f"data.features.{node_type}"
        if node_type not in node_types:
            raise ConfigError(f"{key}: expected a node type: {', '.join(node_types)}")
        options = config.data.features_options.get(node_type, {})
        make = _source_factory(key, name, options, node_type, node_types[node_type].count)
        source = _make_and_check(make, graph, node_type, min(server, graph.book.servers - 1))
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


def _source_factory(
    key: str, name: str, options: Mapping[str, Any], node_type: str, count: int
) -> Callable[[int], CheckedSource]:
    """Return a function that makes the source of a server at its first call, and keeps it."""
    plug_in: PlugIn[RowSource] = find_plug_in(
        *(key, name, RowSource, {}, options, ["node_type", "count", "server"]),
        options_key=f"data.features_options.{node_type}",
    )

    @cache
    def make(server: int) -> CheckedSource:
        source = plug_in.make(node_type=node_type, count=count, server=server)
        try:
            return CheckedSource(name, node_type, source)
        except SourceError as error:
            raise ConfigError(f"data.features: {error}") from error

    return make


def _make_and_check(
    make: Callable[[int], CheckedSource], graph: PartitionedGraph, node_type: str, server: int
) -> CheckedSource:
    """Make a server's source and read a few of its rows."""
    source, stored = make(server), graph.stored(node_type, server)
    nodes = slice(stored.first, stored.stop) if stored.ids is None else stored.ids
    try:
        source.check(graph.original_ids(node_type)[nodes])
    except SourceError as error:
        raise ConfigError(f"data.features: {error}") from error
    return source
