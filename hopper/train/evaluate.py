"""Validation and test scores, computed over whole neighbourhoods without sampling or dropout."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hopper.array_exchange import exchange_arrays
from hopper.hetero.learnable import LearnableRows
from hopper.inference import Inference
from hopper.inference.inference import Ids
from hopper.models import Objective
from hopper.models.class_scores import class_scores


@contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Switch a model to evaluation mode, without dropout, while the context lasts."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


class Scored(NamedTuple):
    """The scores of a model on a split.

    by_metric: its scores, the one that selects first. by_class: columns of
    :func:`~hopper.models.class_scores.class_scores`; none where a root has not one label.
    """

    by_metric: dict[str, float]
    by_class: dict[str, list[Any]]


class Evaluator:
    """Scores a model on a split, on all ranks together.

    Parameters
    ----------
    inference: computes logits.

    Attributes
    ----------
    baseline_text: says in words what :meth:`baselines` are.
    met_nan: whether a prediction of the last scores was NaN, so that the scores are.
    """

    baseline_text = "what one answer for all nodes reaches"

    def __init__(self, inference: Inference, objective: Objective) -> None:
        self._inference = inference
        self._scene = inference.scene
        self.objective = objective
        self.met_nan = False

    @property
    def learnable(self) -> LearnableRows:
        """The learnable rows that belong to the model."""
        return self._scene.learnable

    def has_split(self, split: str) -> bool:
        """Return whether the graph has nodes in that split."""
        return bool(self._inference.graph.schema.splits.get(split))

    @torch.no_grad()
    def scores(self, model: torch.nn.Module, split: str) -> dict[str, float]:
        """Return the metrics of a split by name; every rank must call it, and all get the same.

        The metric that selects the best model comes first.

        Raises
        ------
        ClusterError: a rank or server was lost, or a deadline passed.
        """
        with evaluating(model):
            logits, labels = self._predict(model, split)
        return self._scores(logits, labels, split)

    @torch.no_grad()
    def score_classes(self, model: torch.nn.Module, split: str) -> Scored:
        """Compute :meth:`scores`, and the scores of each class; every rank must call it.

        Raises
        ------
        ClusterError: a rank or server was lost, or a deadline passed.
        """
        with evaluating(model):
            logits, labels = self._predict(model, split)
        by_class: dict[str, list[Any]] = {}
        counts = self.objective.class_counts(logits, labels)
        if counts is not None:
            self._scene.cluster.all_reduce(counts, "control", f"counting {split} claims by class")
            by_class = class_scores(counts, self._inference.graph.label_names())
        scores = self._scores(logits, labels, split)
        # Logits that are NaN claim no class.
        return Scored(scores, {} if math.isnan(scores[self.objective.metric]) else by_class)

    def _predict(self, model: torch.nn.Module, split: str) -> tuple[Tensor, Tensor]:
        """Return logits and labels of this rank's part of a split; every rank must call it."""
        ids, logits = self._inference.rows(model, self._inference.split(split))
        return logits.cpu(), self._labels(ids)

    @torch.no_grad()
    def baselines(self) -> dict[str, dict[str, float]]:
        """Return the scores of the best single answer for all nodes, by split that is scored.

        That answer is taken from the training nodes: the largest class, for each of several labels
        what most nodes have, or the mean.
        """
        row = self.objective.one_answer(self._training_sums(), self._classes)
        scores = {}
        for split in filter(self.has_split, ("val", "test")):
            labels = self._split_labels(split)
            scores[split] = self._scores(row.expand(len(labels), -1), labels, split)
        return scores

    def _scores(self, logits: Tensor, labels: Tensor, split: str) -> dict[str, float]:
        """Combine all ranks' logits and labels into scores."""
        sums = self.objective.metric_sums(logits, labels)
        self._scene.cluster.all_reduce(sums, "control", f"adding up the {split} score")
        all_roots = None
        if self.objective.needs_all_roots:
            all_roots = self._gather_roots(logits, labels, split)
        return self._combine(sums, all_roots)

    def _combine(self, sums: Tensor, all_roots: tuple[Tensor, Tensor] | None) -> dict[str, float]:
        """Return the scores of sums over all ranks."""
        self.met_nan = bool(sums.isnan().any())
        if all_roots is not None:
            self.met_nan = self.met_nan or bool(all_roots[0].isnan().any())
        return self.objective.scores(sums, all_roots)

    def _training_sums(self) -> Tensor:
        """Return the objective's sums over the labels of all training nodes."""
        sums = self.objective.label_sums(self._split_labels("train"), self._classes)
        self._scene.cluster.all_reduce(sums, "control", "adding up training labels")
        return sums

    def _gather_roots(self, logits: Tensor, labels: Tensor, split: str) -> tuple[Tensor, Tensor]:
        """Return logits and labels of all ranks' roots, on every rank."""
        cluster, width = self._scene.cluster, logits.shape[1]
        if cluster.world == 1:
            return logits, labels
        # Labels travel as float64, which represents class numbers exactly.
        arrays = [logits.double().contiguous().view(-1).numpy(), labels.double().view(-1).numpy()]
        groups = [[array] * cluster.world for array in arrays]
        parts = exchange_arrays(cluster, groups, "control", f"gathering {split} logits")
        all_logits, all_labels = (torch.from_numpy(np.concatenate(part)) for part in parts)
        return (
            all_logits.view(-1, width),
            all_labels.view(-1, *labels.shape[1:]).to(labels.dtype),
        )

    @property
    def _classes(self) -> int:
        labels = self._inference.graph.schema.target_labels
        assert labels is not None
        return labels.classes

    def _split_labels(self, split: str) -> Tensor:
        """Return labels of this rank's part of a split."""
        inference, cluster = self._inference, self._scene.cluster
        placement = inference.graph.placement(cluster.ranks_per_server)
        ids = inference.split(split).ids
        return self._labels(placement.deal(inference.target, ids).of(cluster.rank))

    def _labels(self, ids: Ids) -> Tensor:
        """Return labels of nodes of this rank's server, by global id."""
        stored = torch.from_numpy(self._scene.rows.gather("labels", self._inference.target, ids))
        return self.objective.shape_labels(stored)
