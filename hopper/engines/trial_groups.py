"""What a rank reads for the trials that visit it in an iteration."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from hopper.engines.accumulate import GroupTrainer, Pass
from hopper.features import FeatureSource, PartitionedRows
from hopper.micrograph.subgraph import Subgraph


class VisitedGroups(Protocol):
    """The groups of one rank and iteration, by trial."""

    def passes(self, trial: int) -> Iterator[Pass]:
        """The passes over a trial's group; none is ordinary."""


class SharedGroup:
    """One group for all trials: the same roots and draws, read once.

    The group's input rows are held until the last trial has come.
    """

    def __init__(
        self, trainer: GroupTrainer, rows: PartitionedRows, subgraphs: Sequence[Subgraph]
    ) -> None:
        source: FeatureSource = rows
        if len(subgraphs) > 1:
            source = trainer.fetched_once(rows, subgraphs)
        self._passes = [trainer.read(subgraph, source) for subgraph in subgraphs]

    def passes(self, trial: int) -> Iterator[Pass]:
        """See :class:`VisitedGroups`."""
        return iter(self._passes)


class OwnGroups:
    """A group for every trial, by its own data order and draws.

    Parameters
    ----------
    trainers, subgraphs: by trial.
    pregather: fetch the union of all trials' remote rows now; otherwise each visit fetches its own.
    """

    def __init__(
        self,
        trainers: Mapping[int, GroupTrainer],
        rows: PartitionedRows,
        subgraphs: Mapping[int, Sequence[Subgraph]],
        *,
        pregather: bool,
    ) -> None:
        self._trainers = trainers
        self._subgraphs = dict(subgraphs)
        self._rows: FeatureSource = rows
        if pregather:
            every = [each for group in subgraphs.values() for each in group]
            self._rows = next(iter(trainers.values())).fetched_once(rows, every)

    def passes(self, trial: int) -> Iterator[Pass]:
        """See :class:`VisitedGroups`; each pass is read when its turn comes, and not held."""
        for subgraph in self._subgraphs.pop(trial):
            yield self._trainers[trial].read(subgraph, self._rows)
