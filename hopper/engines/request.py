"""A request for training: a configuration with the graph that it names."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from hopper.config import Config
from hopper.engines.model_reads import ModelReads, find_reads
from hopper.graph.columns import FeatureColumn
from hopper.graph.schema import GraphSchema
from hopper.micrograph.samplers import find_sampler
from hopper.partition import PartitionedGraph
from hopper.tasks import TrainingLinks


@dataclass(frozen=True)
class Request:
    """A configuration and its graph, with what follows from the two.

    All code that checks a run or makes its parts takes a request. What the model reads is therefore
    determined once per process.
    """

    config: Config
    graph: PartitionedGraph

    @cached_property
    def reads(self) -> ModelReads:
        """The part of the graph that the model reads.

        Raises
        ------
        RequestError: as in :func:`hopper.engines.model_reads.find_reads`.
        """
        graph = self.graph
        return find_reads(self.config, graph.schema, graph.relations, graph.partitions)

    @cached_property
    def links(self) -> TrainingLinks:
        """The training edges, where edges are predicted."""
        placement = self.graph.placement(self.config.cluster.ranks_per_server)
        return TrainingLinks(self.graph, placement)

    @cached_property
    def reads_times(self) -> bool:
        """Return whether draws for a node depend on the time of the root."""
        config = self.config.sampler
        return find_sampler(config.kind, config.kind_options).kind.reads_times

    @property
    def schema(self) -> GraphSchema:
        """The schema of the graph."""
        return self.graph.schema

    @property
    def columns(self) -> dict[str, tuple[FeatureColumn, ...]]:
        """The columns of the features that the model reads, by table."""
        return {name: self.schema.columns[name] for name in self.reads.featured}

    @property
    def where(self) -> str:
        """The graph's directory, as the configuration names it."""
        return self.config.data.partitioned

    @property
    def ranks(self) -> int:
        """The number of ranks that train."""
        return self.graph.book.servers * self.config.cluster.ranks_per_server

    def under(self, config: Config) -> Request:
        """Return a request of another configuration for the same graph.

        It takes over what the model reads, and training edges, if these are the same.
        """
        other = Request(config, self.graph)
        if config.cluster.ranks_per_server == self.config.cluster.ranks_per_server:
            other.__dict__["links"] = self.links
        if "reads" in self.__dict__ and self._reads_alike(config):
            other.__dict__["reads"] = self.reads
        return other

    def _reads_alike(self, config: Config) -> bool:
        return (config.model, config.learnable) == (self.config.model, self.config.learnable)
