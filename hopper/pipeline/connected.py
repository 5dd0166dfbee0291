"""A partitioned graph for a training loop of one's own: its draws, its rows and its batches."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
import torch.distributed as dist
from numpy.typing import NDArray

from cache_server.client.in_process import InProcessClient, open_servicers
from cache_server.security import PLAIN, Security
from hopper.cluster.security import check_security, security_of
from hopper.config import Cache, Config, load_config, make_config
from hopper.config.loading import CONFIG_VARIABLE
from hopper.errors import RequestError
from hopper.features import PartitionedRows, RemoteRows, download_graph, open_graph, own_server
from hopper.features.cache_plan import cache_bytes, plan_cache
from hopper.features.cached_features import CachedFeatures
from hopper.files.scratch import scratch_folder
from hopper.graph.schema import Relation
from hopper.micrograph.elsewhere import DrawsElsewhere
from hopper.micrograph.route import (
    GlobalBatch,
    LocalRootSchedule,
    RootSchedule,
    TrainingNodes,
    TrainingRoots,
)
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.samplers import find_sampler
from hopper.micrograph.temporal_sampler import TemporalSampler
from hopper.partition import PartitionedGraph
from hopper.partition.description import server_folder
from hopper.partition.layout import DividedTopology, Replicated
from hopper.partition.placement import Placement as RankPlacement

Placement = Literal["home", "random", "local"]
"""Which roots of a global batch a rank trains: those whose rows its server stores; an equal part,
wherever it lives; or roots of its own, drawn from its server's alone, which is biased."""


class ConnectedGraph:
    """A partitioned graph as one rank sees it; :func:`connect` makes one.

    It is a context manager that closes its connections.

    Attributes
    ----------
    graph: schema, topology, splits, and the maps between original and global ids.
    rows: reads features and labels by global id, of this server and of others. Several threads may
        read at once. ``rows.traffic`` counts the bytes of other servers.
    rank, world: this rank, and the number of ranks.
    exits: what :meth:`close` closes.
    """

    def __init__(
        self,
        graph: PartitionedGraph,
        remote: RemoteRows | None,
        rank: int,
        world: int,
        connect_again: Callable[[], ConnectedGraph],
    ) -> None:
        self.graph, self.rank, self.world = graph, rank, world
        self._remote, self._connect_again = remote, connect_again
        self.exits = ExitStack()
        self._ranks_per_server = max(1, world // graph.book.servers)
        self.rows = PartitionedRows(graph, rank // self._ranks_per_server, remote)

    def __enter__(self) -> ConnectedGraph:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:
        """Let a process that is sent this graph connect by itself."""
        return self._connect_again, ()

    def close(self) -> None:
        """Close the connections to other servers."""
        self.exits.close()

    def sampler(
        self,
        fanouts: Sequence[int],
        *,
        seed: int = 0,
        node_type: str = "",
        fanouts_of: Mapping[Relation, Sequence[int]] | None = None,
        **settings: Any,
    ) -> NeighborSampler:
        """Make a sampler of all relations, which draws the same on every rank.

        Parameters
        ----------
        fanouts: in-neighbors to draw per relation, first hop first; -1 = all.
        seed: of the draws.
        node_type: the type of the roots; "" = the target type.
        fanouts_of: by relation, fanouts of its own, as many; 0 = none is drawn.
        settings: further keys of ``[sampler]``, such as ``kind="weighted"``.

        Raises
        ------
        ConfigError: a setting is unknown or out of range.
        RequestError: the graph cannot be drawn from like this.
        """
        graph, rows = self.graph, self.rows
        values = {"kind": "node", "fanouts": list(fanouts), **settings}
        model, data = {"layers": len(fanouts)}, {"partitioned": str(graph.path)}
        config = make_config({"data": data, "model": model, "sampler": values}).sampler
        if config.device != "cpu":
            raise RequestError(f'sampler.device: expected "cpu" here, given "{config.device}"')
        plug_in = find_sampler(config.kind, config.kind_options)
        is_divided = not graph.layout.draws_alone
        plug_in.kind.check(
            typed=len(graph.relations) > 1, draws_alone=not is_divided, where=str(graph.path)
        )
        if is_divided and not plug_in.kind.draws_elsewhere(config.kind_options):
            raise RequestError(
                f"sampler.kind: {graph.layout.explain(str(graph.path))}, and other servers cannot "
                f'draw as "{config.kind}" does'
            )
        sampler: NeighborSampler = plug_in.kind(
            {relation: graph.topology(relation, rows.server) for relation in graph.relations},
            {name: graph.original_ids(name) for name in graph.schema.node_types},
            node_type or graph.schema.target_type(),
            config.sizes,
            seed,
            fanouts_of=fanouts_of or {},
            draws_once=config.expansion == "once",
            dependence=config.dependence,
            **plug_in.options,
        )
        if isinstance(sampler, TemporalSampler):
            sampler.set_times({sampler.target: graph.times(sampler.target)})
        if is_divided and self._remote is not None:
            sampler.elsewhere = DrawsElsewhere(self._remote, graph.book, rows.traffic)
        return sampler

    def schedule(
        self,
        batch_size: int,
        *,
        roots: str | NDArray[np.int64] | TrainingRoots = "train",
        node_type: str = "",
        seed: int = 0,
        drop_last: bool = False,
        shuffle: bool = True,
        placement: Placement = "home",
    ) -> RootSchedule:
        """Make the global batches of all epochs, which are drawn uniformly from all roots.

        Parameters
        ----------
        batch_size: number of roots of a rank and iteration. A global batch has ``world`` times as
            many, wherever they live.
        roots: name of a split of nodes, [n] int64 distinct original ids, or roots of another kind.
        node_type: the type of the roots; "" = the target type.
        seed: of the order of roots.
        drop_last: whether to leave out an incomplete last global batch.
        shuffle: whether the order of roots is drawn in every epoch. If not, it is that of
            ``roots``.
        placement: with "local" every mini-batch has roots of one server, and is drawn from them.

        Raises
        ------
        RequestError: ids or ``batch_size`` are out of range, or there is no iteration.
        """
        if placement not in get_args(Placement):
            raise RequestError(
                f"placement: expected {', '.join(get_args(Placement))}, given {placement!r}"
            )
        if batch_size < 1:
            raise RequestError(f"batch_size: expected at least 1, given {batch_size}")
        if isinstance(roots, str | np.ndarray):
            roots = self._nodes(roots, node_type or self.graph.schema.target_type())
        is_local = placement == "local" and self.world > 1
        make = LocalRootSchedule if is_local else RootSchedule
        schedule = make(
            roots,
            seed=seed,
            batch_size=batch_size,
            models=self.world,
            drop_last=drop_last,
            shuffle=shuffle,
        )
        if not schedule.iterations:
            raise RequestError(
                f"batch_size: {batch_size} a rank leave no iteration for {roots.count}"
            )
        return schedule

    def placement(self) -> RankPlacement:
        """Tell the home rank of each node."""
        return self.graph.placement(self._ranks_per_server)

    def _nodes(self, roots: str | NDArray[np.int64], node_type: str) -> TrainingNodes:
        """Return nodes of a type as roots: those of a split, or of original ids."""
        graph = self.graph
        if isinstance(roots, str) and graph.schema.target_relations:
            raise RequestError(f"roots: split {roots!r} has edges; expected ids of {node_type!r}")
        if isinstance(roots, str) and node_type != graph.schema.target:
            raise RequestError(f"roots: split {roots!r} has nodes of {graph.schema.target!r}")
        ids = graph.split(roots) if isinstance(roots, str) else roots.astype(np.int64)
        count, distinct = graph.book.total(node_type), np.unique(ids)
        if distinct.size != ids.size or (ids.size and not 0 <= distinct[0] <= distinct[-1] < count):
            raise RequestError(f"roots: expected distinct ids of {node_type!r} in [0, {count})")
        return TrainingNodes(self.placement(), node_type, ids, graph.global_ids(node_type))

    def own_roots(self, batch: GlobalBatch, placement: Placement = "home") -> NDArray[np.int64]:
        """Return the roots of a batch that this rank trains, maybe none: those whose features its
        server stores, or with another placement its mini-batch. One rank alone trains all."""
        if self.world == 1:
            return batch.roots
        return batch.of_home(self.rank) if placement == "home" else batch.of_model(self.rank)


def connect(
    partitioned: str | os.PathLike[str] = "",
    servers: Sequence[str] = (),
    *,
    rank: int | None = None,
    world: int | None = None,
    timeout: float = 60.0,
    security: Security = PLAIN,
    cache: Mapping[str, Any] | None = None,
) -> ConnectedGraph:
    """Open a partitioned graph for a training loop of your own (docs/howto/own-loop.md).

    Parameters
    ----------
    partitioned: what ``hopper partition`` wrote. Of other servers' folders nothing is read if
        there are addresses. Empty = the servers tell what they can, and draw the neighbors, for
        which topology must be partitioned. Without addresses either, the environment variable
        ``HOPPER_CONFIG`` names the file of a configuration, as ``hopper host`` and ``hopper train``
        set it for ``train.script``. Its ``[cluster]`` and ``[cache]`` then take the place of the
        other arguments.
    servers: "host:port" of every feature server, in order. Empty = rows of other servers are read
        from their folders, which must be here.
    rank, world: this rank and the number of ranks: one, or the same number for each server. None =
        as torch.distributed says, or a single rank.
    timeout: seconds that a call to a server may take, and that servers have to answer at first.
    security: certificates and token of the connections.
    cache: keys of ``[cache]``, such as ``{"policy": "lru", "size": "256M"}``: rows of other servers
        that were read last are kept.

    Raises
    ------
    GraphError: the directory is unusable.
    ConfigError, RequestError: the numbers of servers, addresses and ranks do not fit, the graph
        was not divided by node, or an argument is missing or out of range.
    ServerLost, DeadlineExceeded, ClusterError: a server does not answer, or serves another graph.
    """
    if not partitioned and not servers:
        file = os.environ.get(CONFIG_VARIABLE)
        if not file:
            raise RequestError(
                "connect: expected a partitioned directory, addresses of feature servers, or "
                f"{CONFIG_VARIABLE}, the environment variable with the file of a configuration"
            )
        return connect_as(load_config(file), rank=rank, world=world)
    rank, world = _rank_and_world(rank, world)
    again = partial(
        connect,
        partitioned,
        servers,
        rank=rank,
        world=world,
        timeout=timeout,
        security=security,
        cache=cache,
    )
    kept = make_config({"data": {"partitioned": ""}, "cache": dict(cache or {})}).cache
    with ExitStack() as exits:
        if partitioned:
            graph = PartitionedGraph.open(os.fspath(partitioned))
        else:
            folder = exits.enter_context(scratch_folder("hopper-graph-"))
            graph = download_graph(servers, folder, deadline=timeout, security=security)
            if graph.layout.draws_alone:
                raise RequestError(
                    "connect: these servers draw no neighbors; expected the partitioned directory "
                    "beside their addresses, or a graph divided with --topology partitioned"
                )
        how: dict[str, Any] = {"deadline": timeout, "security": security}
        return _join(graph, servers, (rank, world), kept, again, exits, **how)


def connect_as(
    config: Config, *, rank: int | None = None, world: int | None = None
) -> ConnectedGraph:
    """Open the graph of a configuration as :func:`connect` does, with the servers and certificates
    of ``[cluster]``, and with ``[cache]``."""
    check_security(config)
    rank, world = _rank_and_world(rank, world)
    again = partial(connect_as, config, rank=rank, world=world)
    graph, cluster = open_graph(config, own_server(config)), config.cluster
    how: dict[str, Any] = {"deadline": cluster.timeout_seconds, "wire": cluster.feature_wire}
    how["security"] = security_of(config)
    with ExitStack() as exits:
        return _join(graph, cluster.servers, (rank, world), config.cache, again, exits, **how)


def _rank_and_world(rank: int | None, world: int | None) -> tuple[int, int]:
    """Return this rank and the number of ranks, as torch.distributed says where none are given."""
    is_one_of_many = dist.is_available() and dist.is_initialized()
    rank = rank if rank is not None else dist.get_rank() if is_one_of_many else 0
    world = world if world is not None else dist.get_world_size() if is_one_of_many else 1
    return rank, world


def _join(
    graph: PartitionedGraph,
    servers: Sequence[str],
    place: tuple[int, int],
    cache: Cache,
    again: Callable[[], ConnectedGraph],
    exits: ExitStack,
    **how: Any,
) -> ConnectedGraph:
    """Connect a rank, which has a place among all of them, to servers, or to their folders."""
    (rank, world), count = place, graph.book.servers
    if type(graph.layout) not in (Replicated, DividedTopology):
        raise RequestError(f"connect: {graph.layout.explain(str(graph.path))}")
    if not 0 <= rank < world or (world > 1 and world % count):
        raise RequestError(
            f"connect: {graph.path} is divided over {count} servers; expected one rank, or as many "
            f"for each server, given rank {rank} of {world}"
        )
    if cache.policy not in ("none", "lru") or cache.memory != "host":
        raise RequestError(
            'cache: expected policy "none" or "lru" and memory "host" here, given '
            f'"{cache.policy}" and "{cache.memory}"'
        )
    remote = None
    if servers:
        remote = RemoteRows(graph, servers, **how)
        exits.callback(remote.close)
        remote.wait_until_serving(how["deadline"])
    elif count > 1:
        folders = [server_folder(graph.path, server) for server in range(count)]
        make_client = partial(InProcessClient, open_servicers(folders))
        remote = RemoteRows(graph, list(map(str, folders)), how["deadline"], make_client)
        exits.callback(remote.close)
    connected = ConnectedGraph(graph, remote, rank, world, again)
    if remote is not None and cache.policy == "lru":
        featured = [name for name, kind in graph.schema.node_types.items() if kind.feature_dim]
        features = CachedFeatures(featured, connected.rows, stored_as={})
        profile = {name: features.describe(name) for name in featured}
        features.fill(plan_cache(profile, "lru", cache_bytes(cache.size, profile)))
    connected.exits = exits.pop_all()
    return connected
