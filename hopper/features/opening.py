"""A run's graph, with features from a class of one's own where the configuration says so."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

from cache_server.errors import SourceError
from cache_server.row_source import CheckedSource, RowSource
from hopper.config import Config
from hopper.errors import ConfigError
from hopper.partition import PartitionedGraph
from hopper.plug_ins import PlugIn, find_plug_in


def open_graph(config: Config, server: int = 0) -> PartitionedGraph:
    """Open a configuration's partitioned directory; widths of features are then those of their
    sources, wherever a schema tells them.

    Parameters
    ----------
    server: whose rows are tried, before anything depends on them.

    Raises
    ------
    GraphError: as of :meth:`hopper.partition.PartitionedGraph.open`.
    ConfigError: a source cannot be found or made, or gives something else than it says.
    """
    graph = PartitionedGraph.open(config.data.partitioned)
    sources: dict[str, Callable[[int], CheckedSource]] = {}
    node_types = dict(graph.schema.node_types)
    for node_type, name in config.data.features.items():
        key = f"data.features.{node_type}"
        if node_type not in node_types:
            raise ConfigError(f"{key}: expected a node type: {', '.join(node_types)}")
        options = config.data.features_options.get(node_type, {})
        made = _maker(key, name, options, node_type, node_types[node_type].count)
        first = _try(made, graph, node_type, min(server, graph.book.servers - 1))
        sources[node_type] = made
        node_types[node_type] = replace(
            node_types[node_type],
            feature_dim=first.dim,
            feature_dtype=first.dtype_name,
            feature_error=None,
        )
    graph.feature_sources = sources
    graph.schema = replace(graph.schema, node_types=node_types)
    return graph


def own_server(config: Config) -> int:
    """The server of the rank that torchrun's environment names."""
    return int(os.environ.get("RANK", 0)) // config.cluster.ranks_per_server


def _maker(
    key: str, name: str, options: Mapping[str, Any], node_type: str, count: int
) -> Callable[[int], CheckedSource]:
    """Makes the source of a server, once."""
    found: PlugIn[RowSource] = find_plug_in(
        *(key, name, RowSource, {}, options, ["node_type", "count", "server"]),
        options_key=f"data.features_options.{node_type}",
    )

    @cache
    def make(server: int) -> CheckedSource:
        source = found.make(node_type=node_type, count=count, server=server)
        try:
            return CheckedSource(name, node_type, source)
        except SourceError as error:
            raise ConfigError(f"data.features: {error}") from error

    return make


def _try(
    make: Callable[[int], CheckedSource], graph: PartitionedGraph, node_type: str, server: int
) -> CheckedSource:
    """A server's source, some of whose rows were read."""
    source, stored = make(server), graph.stored(node_type, server)
    own = slice(stored.first, stored.stop) if stored.ids is None else stored.ids
    try:
        source.check(graph.original_ids(node_type)[own])
    except SourceError as error:
        raise ConfigError(f"data.features: {error}") from error
    return source
