"""Validation and test scores, over whole neighbourhoods: no sampling, no dropout."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from hopper.array_exchange import exchange_arrays
from hopper.hetero.learnable import LearnableRows
from hopper.inference import Inference
from hopper.inference.inference import Ids
from hopper.models import Objective


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Within it a model computes without dropout; it goes back to what it was."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


class Evaluator:
    """Scores a model on a split, on all ranks together.

    Parameters
    ----------
    inference: computes logits.

    Attributes
    ----------
    told_baseline: what :meth:`baselines` are, in words.
    """

    told_baseline = "what one answer for all nodes reaches"

    def __init__(self, inference: Inference, objective: Objective) -> None:
        self._inference = inference
        self._scene = inference.scene
        self.objective = objective

    @property
    def learnable(self) -> LearnableRows:
        """What is learned besides the model."""
        return self._scene.learnable

    def has_split(self, split: str) -> bool:
        """Whether the graph has nodes in that split."""
        return bool(self._inference.graph.schema.splits.get(split))

    @torch.no_grad()
    def scores(self, model: torch.nn.Module, split: str) -> dict[str, float]:
        """The metrics of a split by name, the one that selects first; equal on every rank.

        Raises
        ------
        ClusterError: a rank or server was lost, or a deadline passed.
        """
        with evaluating(model):
            logits, labels = self._answers(model, split)
        return self._scores(logits, labels, split)

    def _answers(self, model: torch.nn.Module, split: str) -> tuple[Tensor, Tensor]:
        """The logits of this rank's part of a split, and their labels; collective."""
        ids, logits = self._inference.rows(model, self._inference.split(split))
        return logits.cpu(), self._labels(ids)

    @torch.no_grad()
    def baselines(self) -> dict[str, dict[str, float]]:
        """By split that is scored, what one answer for all nodes would reach: the largest class,
        for each of several labels what most nodes have, or the mean; of training nodes."""
        row = self.objective.one_answer(self._training_sums(), self._classes)
        found = {}
        for split in filter(self.has_split, ("val", "test")):
            labels = self._labels_of(split)
            found[split] = self._scores(row.expand(len(labels), -1), labels, split)
        return found

    def _scores(self, logits: Tensor, labels: Tensor, split: str) -> dict[str, float]:
        sums = self.objective.metric_sums(logits, labels)
        self._scene.cluster.all_reduce(sums, "control", f"adding up the {split} score")
        everyones = None
        if self.objective.needs_all_roots:
            everyones = self._gathered(logits, labels, split)
        return self.objective.scores(sums, everyones)

    def _training_sums(self) -> Tensor:
        sums = self.objective.label_sums(self._labels_of("train"), self._classes)
        self._scene.cluster.all_reduce(sums, "control", "adding up training labels")
        return sums

    def _gathered(self, logits: Tensor, labels: Tensor, split: str) -> tuple[Tensor, Tensor]:
        """Logits and labels of every rank's nodes, on all of them."""
        cluster, width = self._scene.cluster, logits.shape[1]
        if cluster.world == 1:
            return logits, labels
        # In float64 class numbers are exact.
        own = [logits.double().contiguous().view(-1).numpy(), labels.double().view(-1).numpy()]
        groups = [[each] * cluster.world for each in own]
        found = exchange_arrays(cluster, groups, "control", f"gathering {split} logits")
        every = [torch.from_numpy(np.concatenate(parts)) for parts in found]
        return every[0].view(-1, width), every[1].view(-1, *labels.shape[1:]).to(labels.dtype)

    @property
    def _classes(self) -> int:
        labels = self._inference.graph.schema.target_labels
        assert labels is not None
        return labels.classes

    def _labels_of(self, split: str) -> Tensor:
        """Labels of this rank's part of a split."""
        inference, cluster = self._inference, self._scene.cluster
        placement = inference.graph.placement(cluster.ranks_per_server)
        ids = inference.split(split).ids
        return self._labels(placement.deal(inference.target, ids).of(cluster.rank))

    def _labels(self, ids: Ids) -> Tensor:
        stored = torch.from_numpy(self._scene.rows.gather("labels", self._inference.target, ids))
        return self.objective.shape_labels(stored)
