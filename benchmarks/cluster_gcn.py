"""ClusterGCN's batches (Chiang et al., KDD 2019) as plug-ins of Hopper, to be compared with.

A partitioner has divided the graph into many clusters. In every epoch they are dealt at random, a
few to each batch; a batch's roots are the training nodes of its clusters, and edges that leave
these are dropped. Whether an edge stays depends on seed, epoch and the clusters of its ends alone,
so draws remain those of single nodes. Graphs have one node type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Unpack, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from cache_server.draws.spec import Drawn
from hopper.engines import Spec
from hopper.engines.data_parallel import ModelCentric
from hopper.errors import RequestError
from hopper.graph.schema import Relation
from hopper.graph.topology import Topology
from hopper.micrograph.frontier_kernels import keep_edges
from hopper.micrograph.route import GlobalBatch, RootSchedule, TrainingNodes, permute
from hopper.micrograph.sample import NeighborSampler, SamplerOptions


class Clusters:
    """Which batch of an epoch every node belongs to.

    Parameters
    ----------
    path: an array, [nodes] of integers: the cluster of every original id, from 0.
    seed: of the order in which clusters are dealt, ``per_batch`` to a batch.
    """

    def __init__(self, path: str, per_batch: int, seed: int) -> None:
        self._of_node = np.load(path, allow_pickle=False)
        self._count = int(self._of_node.max()) + 1
        self._per_batch, self._seed = per_batch, seed
        self.batches = -(-self._count // per_batch)
        """of an epoch"""
        self._dealt: tuple[int, NDArray[np.int64]] | None = None

    def batch_of(self, epoch: int) -> NDArray[np.int64]:
        """Return [nodes] int64: the number of each original id's batch."""
        dealt = self._dealt
        if dealt is None or dealt[0] != epoch:
            order = permute(self._seed, epoch, self._count, np.arange(self._count))
            batches = np.empty(self._count, np.int64)
            batches[order] = np.arange(self._count) // self._per_batch
            dealt = self._dealt = (epoch, batches[self._of_node])
        return dealt[1]


class ClusterSampler(NeighborSampler):
    """Draws as :class:`NeighborSampler`, and drops edges between nodes of different batches."""

    def __init__(
        self,
        topologies: Mapping[Relation, Topology],
        original_ids: Mapping[str, NDArray[np.int64]],
        target: str,
        fanouts: Sequence[int],
        seed: int,
        clusters: str,
        per_batch: Annotated[int, Field(ge=1)] = 1,
        **options: Unpack[SamplerOptions],
    ) -> None:
        super().__init__(topologies, original_ids, target, fanouts, seed, **options)
        self._clusters = Clusters(clusters, per_batch, seed)

    @classmethod
    def check(cls, *, typed: bool, draws_alone: bool, where: str) -> None:
        """See :class:`NeighborSampler`."""
        if typed:
            raise RequestError(f"sampler.kind: clusters are of one node type; {where} has several")

    def draw(
        self,
        hop: int,
        relation: Relation,
        destinations: NDArray[np.int64],
        moment: tuple[int, int],
    ) -> Drawn:
        """See :class:`NeighborSampler`."""
        offsets, sources, positions = super().draw(hop, relation, destinations, moment)
        batch_of, originals = self._clusters.batch_of(moment[0]), self.original_ids[relation.dst]
        source_batches = np.repeat(batch_of[originals[destinations]], np.diff(offsets))
        flags = batch_of[originals[sources]] == source_batches
        return keep_edges((offsets, sources, positions), flags)


class ClusterSchedule(RootSchedule):
    """Global batches whose mini-batch d holds the training nodes of one batch of clusters."""

    def __init__(self, *arguments: Any, clusters: str, per_batch: int = 1, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._clusters = Clusters(clusters, per_batch, self._seed)
        self.iterations = -(-self._clusters.batches // self._models)
        if options.get("most_iterations"):
            self.iterations = min(self.iterations, options["most_iterations"])

    def batch(self, epoch: int, iteration: int) -> GlobalBatch:
        """Return the global batch of an iteration. Raise RequestError if it has no root."""
        nodes = cast(TrainingNodes, self._roots)
        order = permute(self._seed, epoch, nodes.count, np.arange(nodes.count))
        number = self._clusters.batch_of(epoch)[nodes.ids[order]]
        first_batch = iteration * self._models
        parts = [order[number == first_batch + model] for model in range(self._models)]
        roots = nodes.at(np.concatenate(parts))
        if not roots.size:
            raise RequestError(
                f"sampler.kind_options: no training node in epoch {epoch}, iteration {iteration}; "
                "take more clusters per_batch"
            )
        bounds = np.concatenate(([0], np.cumsum([nodes.size for nodes in parts])))
        homes = nodes.home_ranks(roots)
        return GlobalBatch(epoch, iteration, roots, bounds, homes)


class ClusterBatches(ModelCentric):
    """As ``model_centric``, on batches of clusters; ``sampler.kind`` has to be
    :class:`ClusterSampler`, whose options give the clusters."""

    # The sampler's options are the schedule's too, so that batches are its clusters.
    spec = Spec(
        "cluster_gcn",
        schedule=ClusterSchedule,
        schedule_options="sampler.kind_options",
        biased="a batch holds the training nodes of a few clusters",
    )
