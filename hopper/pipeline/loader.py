"""Batches for a training loop of one's own: every rank's part of each global batch."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

import numpy as np
import torch
from torch import Tensor

from cache_server.process import return_freed_memory
from hopper.config import Pipeline as PipelineConfig
from hopper.config import make_config
from hopper.errors import RequestError
from hopper.features import PartitionedRows, distinct
from hopper.graph.block import Block, TypedBlocks
from hopper.graph.schema import Relation
from hopper.graph.topology import Ids
from hopper.micrograph.route import GlobalBatch, RootSchedule
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.subgraph import Subgraph
from hopper.pipeline.connected import ConnectedGraph, Placement, connect
from hopper.pipeline.lookahead import Lookahead
from hopper.pipeline.pipeline import Moment, Pipeline, Stage

T = TypeVar("T")
Connectable = ConnectedGraph | str | os.PathLike[str] | Sequence[str]
"""a partitioned directory, the addresses of all servers, or what :func:`hopper.connect` returned"""


@dataclass(frozen=True)
class Drawn:
    """A rank's part of a global batch, before its rows are read."""

    subgraph: Subgraph
    """what was drawn for this rank's roots, which may be none"""
    batch: GlobalBatch
    """the global batch"""
    world: int
    """the number of ranks"""

    @property
    def loss_scale(self) -> float:
        """Ranks over the size of the global batch. A loss that is *summed* over this rank's roots
        and multiplied by it has gradients whose mean over ranks, as DistributedDataParallel takes
        it, is the gradient of the global batch's mean loss."""
        return self.world / self.batch.size


class Loader(Generic[T]):
    """The batches of a rank, epoch after epoch.

    Each ``for`` loop goes through an epoch. A loop that was left early is not gone on with: the
    next one begins the next epoch, unless :meth:`load_state_dict` was called. Batches are read
    ahead in threads, to the end of an epoch. It is a context manager that ends the threads, and
    closes the graph if it has opened it.

    Parameters
    ----------
    draw: draws an iteration, for this rank or as if it were alone.
    read: makes the batch of it, given the rows to read from.
    iterations: of an epoch.
    """

    def __init__(
        self,
        graph: ConnectedGraph,
        draw: Callable[[Moment, bool], Drawn],
        read: Callable[[Drawn, PartitionedRows], T],
        iterations: int,
        config: PipelineConfig,
        *,
        closes: bool = False,
    ) -> None:
        self.graph = graph
        self._draw, self._read = draw, read
        self._iterations, self._config, self._closes = iterations, config, closes
        self._state = {"epoch": 0, "iteration": 0, "iterations": iterations}
        self._pipeline: Pipeline[T] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        """Return the number of batches of an epoch, which is the same on all ranks."""
        return self._iterations

    def __iter__(self) -> Iterator[T]:
        """Hand out the batches of the next epoch, or what is left of a restored one."""
        self._end_pipeline()
        epoch = self._state["epoch"]
        with self._start() as pipeline:
            self._pipeline = pipeline
            for batch in pipeline:
                self._state = pipeline.state_dict()
                yield batch
        self._pipeline = None
        return_freed_memory()
        assert self._state["epoch"] > epoch

    def make(self, moment: tuple[int, int], *, alone: bool = False) -> T:
        """Make the batch of an epoch and iteration, apart from the loop.

        Parameters
        ----------
        alone: whether it has all roots of the global batch, as on a single rank.
        """
        return self._read(self._draw(Moment(*moment), alone), self.graph.rows)

    def _start(self) -> Pipeline[T]:
        """Make the pipeline of an epoch, which begins where the state says."""
        config, graph = self._config, self.graph
        types = [name for name, kind in graph.graph.schema.node_types.items() if kind.feature_dim]
        lookahead = Lookahead(graph.rows, types, config)

        def draw(moment: Moment) -> Drawn:
            return self._draw(moment, False)

        def read(drawn: Drawn) -> T:
            rows = graph.rows.with_own_counts()
            view = lookahead.read_early(rows)
            with lookahead.turn(view):
                batch = self._read(drawn, view)
            graph.rows.take_over(rows)
            return batch

        def foresee(drawn: Sequence[Drawn]) -> None:
            lookahead.foresee(
                [{name: distinct([one.subgraph.nodes[name]]) for name in types} for one in drawn]
            )

        reach = lookahead.reach
        return Pipeline[T](
            [
                Stage("draw", draw, config.depth, config.nbytes, _drawn_bytes),
                Stage("read", read, config.reads, config.nbytes, reach=reach, foresee=foresee),
            ],
            self._iterations,
            self._state["epoch"] + 1,
            start=(self._state["epoch"], self._state["iteration"]),
            ahead=config.depth > 0,
        )

    def _end_pipeline(self) -> None:
        """End an epoch that a loop has left, if there is one, and go to the next one."""
        if self._pipeline is None:
            return
        self._pipeline.close()
        self._pipeline = None
        return_freed_memory()
        if self._state["iteration"]:
            self._state |= {"epoch": self._state["epoch"] + 1, "iteration": 0}

    def state_dict(self) -> dict[str, int]:
        """Return where the loader stands: what was handed out counts, what was read ahead does
        not."""
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where another loader of the same batches stood, in the midst of an epoch too.

        Raises
        ------
        RequestError: the state is of batches of another number, or of something else.
        """
        self._end_pipeline()
        probe: Pipeline[T] = Pipeline([], self._iterations)
        probe.load_state_dict(state)
        self._state = probe.state_dict()

    def close(self) -> None:
        """End the threads; close the graph's connections if the loader has opened them."""
        self._end_pipeline()
        if self._closes:
            self.graph.close()


@dataclass(frozen=True)
class Batch:
    """A rank's part of a global batch, for models that compute on blocks.

    Attributes
    ----------
    features: by node type with features, [nodes, dim] rows of ``subgraph.nodes``.
    labels: of the roots, [roots] classes or [roots, columns]; None if the graph has none.
    edge_features: by relation whose features were asked for: [ids, dim].
    loss_scale: see :attr:`Drawn.loss_scale`.
    global_size: the number of roots of all ranks together.
    """

    subgraph: Subgraph
    features: Mapping[str, Tensor]
    labels: Tensor | None
    edge_features: Mapping[Relation, Tensor]
    loss_scale: float
    global_size: int

    @property
    def roots(self) -> Ids:
        """[roots] int64 original ids."""
        subgraph = self.subgraph
        return subgraph.original_ids[subgraph.target][subgraph.roots]

    @property
    def x(self) -> Tensor:
        """The features of the target type: of the whole batch, in a graph of one type."""
        return self.features[self.subgraph.target]

    def blocks(self, device: torch.device | None = None) -> list[Block]:
        """Return the blocks of a graph with one relation, in order of computation."""
        return self.subgraph.blocks(device, self.edge_features)

    def typed_blocks(self, device: torch.device | None = None) -> list[TypedBlocks]:
        """Return the blocks of every hop by relation, in order of computation."""
        return self.subgraph.typed_blocks(device, self.edge_features)

    def as_dgl(self) -> list[Any]:
        """Return DGL's message-flow graphs, in order of computation, as its samplers do.

        Their nodes have the original ids as ``dgl.NID``. Those of graphs with several relations
        have all types and relations, also those without nodes or edges.

        Raises
        ------
        RequestError: DGL is not installed.
        """
        return [hop.to_dgl() for hop in self.typed_blocks()]


def loader(
    graph: Connectable,
    fanouts: Sequence[int],
    *,
    batch_size: int,
    roots: str | Ids = "train",
    placement: Placement = "home",
    shuffle: bool = True,
    drop_last: bool = False,
    seed: int = 0,
    edge_features: Sequence[Relation] = (),
    pipeline: Mapping[str, Any] | None = None,
    **sampler: Any,
) -> Loader[Batch]:
    """Make a loader of blocks and rows for a training loop of your own (docs/howto/own-loop.md).

    Parameters
    ----------
    graph: a partitioned directory, the addresses of all servers, or what :func:`hopper.connect`
        returned.
    fanouts: in-neighbors to draw per relation, first hop first; -1 = all.
    batch_size: roots of a rank and iteration in the mean. A global batch has as many for each rank.
    roots: name of a split of nodes, or [n] int64 distinct original ids of the target type.
    placement: which roots of a global batch a rank trains. "home": those whose rows its server
        stores, so few rows travel; a rank may have none. "random": an equal part, wherever it
        lives. "local": batches are drawn from each server's own roots, which is biased.
    shuffle: whether the order of roots is drawn in every epoch.
    drop_last: whether to leave out an incomplete last global batch.
    seed: of the order of roots and of the draws.
    edge_features: relations whose edges' features are read.
    pipeline: keys of ``[pipeline]``, such as ``{"lookahead": 5}``.
    sampler: further keys of ``[sampler]``, such as ``kind="weighted"``.

    Raises
    ------
    ConfigError, RequestError, GraphError: names what is wrong, before anything is read.
    """
    config = pipeline_config(pipeline or {})
    with connected(graph) as opened:
        for relation in edge_features:
            if opened.graph.schema.relations[relation].feature_dim is None:
                raise RequestError(f"edge_features: edges of {relation} have no features")
        neighbors = opened.sampler(fanouts, seed=seed, **sampler)
        schedule = opened.schedule(
            batch_size,
            roots=roots,
            seed=seed,
            drop_last=drop_last,
            shuffle=shuffle,
            placement=placement,
        )
        return Loader(
            opened,
            draw_with(opened, neighbors, schedule, placement),
            lambda drawn, rows: _read_batch(drawn, rows, edge_features),
            schedule.iterations,
            config,
            closes=opened is not graph,
        )


@contextmanager
def connected(graph: Connectable) -> Iterator[ConnectedGraph]:
    """Open a graph that is not open; close it again if the block fails."""
    if isinstance(graph, ConnectedGraph):
        yield graph
        return
    given = (graph,) if isinstance(graph, str | os.PathLike) else ("", graph)
    with ExitStack() as on_error:
        yield on_error.enter_context(connect(*given))
        on_error.pop_all()


def pipeline_config(values: Mapping[str, Any]) -> PipelineConfig:
    """Check keys of ``[pipeline]``."""
    return make_config({"data": {"partitioned": ""}, "pipeline": dict(values)}).pipeline


def draw_with(
    graph: ConnectedGraph,
    sampler: NeighborSampler,
    schedule: RootSchedule,
    placement: Placement,
    *,
    once: bool = False,
) -> Callable[[Moment, bool], Drawn]:
    """Return what draws a rank's part of an iteration, or all of it."""

    def draw(moment: Moment, alone: bool) -> Drawn:
        batch = schedule.batch(*moment)
        roots = batch.roots if alone else graph.own_roots(batch, placement)
        versions = {sampler.target: sampler.versions(sampler.target, roots)}
        subgraph = sampler.sample_versions(versions, *moment, once=once)
        return Drawn(subgraph, batch, 1 if alone else graph.world)

    return draw


def read_features(rows: PartitionedRows, table: str, ids: Ids, *, distinct: bool = False) -> Tensor:
    """Read features as they were imported: [n, dim], float16 and bfloat16 too.

    Parameters
    ----------
    table: a node type, or a relation as ``src/rel/dst``.
    ids: [n] int64 global ids of nodes, or indices of edges.
    distinct: whether no id is known to repeat, which then need not be found out.
    """
    if distinct:
        return rows.stored(table, ids).to_tensor()
    each, places = np.unique(ids, return_inverse=True)
    return rows.stored(table, each).to_tensor()[torch.from_numpy(places)]


def read_nodes(rows: PartitionedRows, subgraph: Subgraph, node_type: str) -> Tensor:
    """Read the features of a subgraph's nodes of a type; with times a node may have many rows."""
    nodes = subgraph.nodes[node_type]
    return read_features(rows, node_type, nodes, distinct=not subgraph.times)


def read_labels(rows: PartitionedRows, node_type: str, roots: Ids) -> Tensor | None:
    """Read the labels of nodes: [n] classes, or [n, columns]; None if the type has none."""
    labels = rows.graph.schema.labels.get(node_type)
    if labels is None:
        return None
    read = torch.from_numpy(rows.gather("labels", node_type, roots))
    return read[:, 0] if labels.kind == "class" else read


def _read_batch(drawn: Drawn, rows: PartitionedRows, edge_features: Sequence[Relation]) -> Batch:
    subgraph = drawn.subgraph.with_edges(edge_features)
    schema = rows.graph.schema
    return Batch(
        subgraph,
        {
            name: read_nodes(rows, subgraph, name)
            for name, kind in schema.node_types.items()
            if kind.feature_dim
        },
        read_labels(rows, subgraph.target, subgraph.roots),
        {
            relation: read_features(rows, edges.table, edges.ids, distinct=True)
            for relation, edges in subgraph.edges.items()
        },
        drawn.loss_scale,
        drawn.batch.size,
    )


def _drawn_bytes(drawn: Drawn) -> int:
    subgraph = drawn.subgraph
    nodes = sum(ids.nbytes for ids in subgraph.nodes.values())
    return nodes + 2 * 8 * subgraph.num_edges
