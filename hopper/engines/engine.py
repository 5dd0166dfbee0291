"""The contract of an engine: what it is, and what it plans, reads and computes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, TypeVar

from hopper.cluster.cluster import Cluster
from hopper.cluster.traffic import Cause
from hopper.config import Config
from hopper.engines.micro_batch import MicroBatchRunner
from hopper.engines.optimizer import Optimizer
from hopper.engines.request import Request
from hopper.features import PartitionedRows
from hopper.graph.topology import Ids
from hopper.hetero.learnable import LearnableRows, Routes
from hopper.micrograph.route import GlobalBatch, RootSchedule
from hopper.migrate.flat_model import FlatModel
from hopper.partition.layout import DividedTopology, Layout, Replicated
from hopper.timing.run_log import RunLog

_NODE_BYTES: Final = 8
_EDGE_BYTES: Final = 16


@dataclass(frozen=True)
class Spec:
    """What an engine is. Hopper asks for these traits, and never for an engine's name.

    Options are named as "section.key".

    Attributes
    ----------
    name: its name in messages and results.
    layouts: the layouts of graphs that it can train.
    schedule: the class that deals roots to global batches.
    schedule_options: the option whose table has more keywords of ``schedule``; "" = none.
    reads_remote_rows: whether ranks read input rows of other servers, which a cache may keep.
    draws_own_nodes: whether a rank draws neighbours only of the nodes that it owns.
    plans_on_host: whether it draws in host memory only.
    plans_together: whether ranks talk to each other while they plan, over
        :attr:`TrainState.channel`.
    predicts_links: whether roots may be links.
    raised_option: an option with a whole number that is raised before a run for as long as
        iterations get faster, where it is "adaptive" or left open; "" = none.
    biased: why global batches are not drawn uniformly from all training roots; "" = they are.
    exact_options: by option that rounds values on purpose, the value with which it does not.
    plans_as: engines with the same word plan to read the same rows; "" = as no other engine.
    plan_options: the options on which plans depend, besides graph, model depth, sampler, schedule.
    """

    name: str
    layouts: tuple[type[Layout], ...] = (Replicated, DividedTopology)
    schedule: type[RootSchedule] = RootSchedule
    schedule_options: str = ""
    reads_remote_rows: bool = True
    draws_own_nodes: bool = False
    plans_on_host: bool = False
    plans_together: bool = False
    predicts_links: bool = False
    raised_option: str = ""
    biased: str = ""
    exact_options: Mapping[str, str] = field(default_factory=dict)
    plans_as: str = ""
    plan_options: tuple[str, ...] = ()

    def approximations(self, config: Config) -> list[str]:
        """Say why gradients are not those of a single process on all training roots.

        Returns
        -------
        One text for each reason; empty = gradients are exact.
        """
        exact = {"train.autocast": "off", **self.exact_options}
        if self.reads_remote_rows:
            exact["cluster.feature_wire"] = "stored"
        given = {option: value_of(config, option) for option in exact}
        rounded = [f"{name} = {given[name]}" for name in exact if given[name] != exact[name]]
        return [self.biased, *rounded] if self.biased else rounded

    def plan_key(self, config: Config) -> list[Any]:
        """Return what plans depend on; engines with equal keys read the same rows."""
        options = [value_of(config, option) for option in self.plan_options]
        return [self.plans_as or self.name, *options]


def value_of(config: Config, option: str) -> Any:
    """Return the value of an option, given as "section.key"."""
    section, key = option.split(".")
    return getattr(getattr(config, section), key)


@dataclass
class TrainState:
    """The models, rows and connections that one rank trains with.

    Attributes
    ----------
    channel: the connections that planning uses. They are other ones than ``cluster``'s if ranks
        talk to each other while they plan, because earlier iterations are trained meanwhile.
    packed: the model, flat.
    trainer: samples, reads and trains micro-batches.
    name: the model's name where several models are trained at once; empty for a lone model.
    overrides: the configuration values that this model replaces, by "section.key".
    """

    request: Request
    cluster: Cluster
    channel: Cluster
    log: RunLog
    rows: PartitionedRows
    packed: FlatModel
    optimizer: Optimizer
    trainer: MicroBatchRunner
    learnable: LearnableRows
    name: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        """The configuration of the run."""
        return self.request.config


@dataclass(frozen=True)
class Plan:
    """A rank's work in an iteration, as far as sampling and routing determine it.

    Attributes
    ----------
    batch: the global batch that is planned.
    reads: by name of a type, the nodes whose input rows this rank reads, in groups. A relation as
        ``src/rel/dst`` names the edges whose features it reads.
    sent: the bytes, by cause, that planning sent; Hopper fills it in.
    asked: which rank reads which learnable rows of which other rank; Hopper fills it in.
    reads_ahead: whether :meth:`Engine.read` reads all rows of other servers, so that it may know
        which rows the next plans read too.
    one_backward: whether all gradients of learnable rows come of one backward pass, during which
        they can then be sent.
    num_edges: the number of edges that the plan holds, in all hops and layers together.
    """

    batch: GlobalBatch
    reads: Mapping[str, Sequence[Ids]]
    sent: Mapping[Cause, int] = field(default_factory=dict, kw_only=True)
    asked: Sequence[Routes] = field(default=(), kw_only=True)
    reads_ahead: bool = field(default=False, kw_only=True)
    one_backward: bool = field(default=False, kw_only=True)
    num_edges: int = field(default=0, kw_only=True)

    @property
    def nbytes(self) -> int:
        """The plan's approximate size: an id for a node, a source and a position for an edge."""
        nodes = sum(ids.size for groups in self.reads.values() for ids in groups)
        return _NODE_BYTES * nodes + _EDGE_BYTES * self.num_edges


PlanT = TypeVar("PlanT", bound=Plan)
InputsT = TypeVar("InputsT")


class Engine(ABC, Generic[PlanT, InputsT]):
    """A way to bring models and rows together (docs/inside/engines.md).

    An engine plans an iteration, reads the rows of the plan, and computes this rank's part of the
    gradient from them. All else is the same for every engine
    (:class:`hopper.engines.train_step.TrainStep`).
    """

    spec: ClassVar[Spec]
    parameter_servers: Mapping[str, int | Ids] = {}
    """by name of a parameter that not all servers compute with, the only server that does, or an
    array of the parameter's shape with the server of each number"""

    def __init__(self, state: TrainState) -> None:
        self.state = state

    @classmethod
    def check(cls, request: Request) -> None:
        """Refuse a request that this engine cannot train. Most engines train any request.

        Raises
        ------
        RequestError: the message names the key, the expected value and the given value.
        """

    @abstractmethod
    def plan(self, batch: GlobalBatch) -> PlanT:
        """Decide what this rank does for a batch.

        The plan covers sampling and routing, and depends on the batch alone. Another thread may
        call this method while earlier batches are read and trained. Every rank calls it, in the
        order of the schedule.
        """

    @abstractmethod
    def read(self, plan: PlanT, rows: PartitionedRows) -> InputsT:
        """Read the input rows of a plan: local, cached and remote ones.

        Learnable rows are read later, because earlier updates still change them. Another thread
        may call this method while earlier batches are trained.

        Parameters
        ----------
        rows: the source of the rows. They may be read from it as late as in :meth:`compute`.
        """

    @abstractmethod
    def compute(self, plan: PlanT, inputs: InputsT) -> None:
        """Add the gradient and the loss of this rank's part to ``state.packed``."""
