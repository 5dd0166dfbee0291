"""Validation and test scores, computed over whole neighbourhoods without sampling or dropout."""

from __future__ import annotations

import copy
import math
from functools import cache
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hopper.cluster.array_exchange import exchange_arrays
from hopper.graph.topology import Ids
from hopper.hetero.learnable import LearnableRows
from hopper.inference import Inference, Wanted, blocks_of, parts_of, score_block
from hopper.models import Objective
from hopper.models.class_scores import class_scores
from hopper.tasks import LinkTable, decoder_of

_BLOCK_BYTES: Final = 64 << 20
"""Bytes of the rows of a block of edges."""


class Scored(NamedTuple):
    """The scores of a model on a split: by metric, the one that selects first, and columns of
    :func:`~hopper.models.class_scores.class_scores`, none where a root has not one label."""

    by_metric: dict[str, float]
    by_class: dict[str, list[Any]]


class Evaluator:
    """Scores a model's predictions of nodes on a split, on all ranks together.

    Attributes
    ----------
    baseline_text: says in words what :meth:`baselines` are.
    divides_roots: whether each rank predicts a part of the roots; otherwise each predicts all.
    met_nan: whether a prediction of the last scores was NaN, so that the scores are.
    """

    baseline_text: ClassVar[str] = "the same answer for every node"
    divides_roots: ClassVar[bool] = True

    def __init__(self, inference: Inference, objective: Objective) -> None:
        self._inference = inference
        self._graph, self._cluster = inference.graph, inference.scene.cluster
        self.objective = objective
        self.met_nan = False

    @property
    def learnable(self) -> LearnableRows:
        """The learnable rows that belong to the model."""
        return self._inference.scene.learnable

    def has_split(self, split: str) -> bool:
        """Return whether the graph has roots in that split."""
        return bool(self._graph.schema.splits.get(split))

    @torch.no_grad()
    def score(self, model: torch.nn.Module, split: str, *, by_class: bool = False) -> Scored:
        """Score a split, and each class too if asked to; every rank must call it, and all get the
        same."""
        was_training = model.training
        logits, labels = self._predict(model.eval(), split)
        model.train(was_training)
        counts = self.objective.class_counts(logits, labels) if by_class else None
        if counts is not None:
            self._cluster.all_reduce(counts, "control", f"counting {split} claims by class")
        scores = self._scores(logits, labels, split)
        # Logits that are NaN claim no class.
        if counts is None or math.isnan(scores[self.objective.metric]):
            return Scored(scores, {})
        return Scored(scores, class_scores(counts, self._graph.label_names()))

    @torch.no_grad()
    def baselines(self) -> dict[str, dict[str, float]]:
        """Return, by split that is scored, the scores of the single answer for all roots that is
        best for the training roots."""
        sums = self.objective.label_sums(self._split_labels("train"), self._classes)
        self._cluster.all_reduce(sums, "control", "adding up training labels")
        row, scores = self.objective.one_answer(sums, self._classes), {}
        for split in filter(self.has_split, ("val", "test")):
            labels = self._split_labels(split)
            scores[split] = self._scores(row.expand(len(labels), -1), labels, split)
        return scores

    def _predict(self, model: torch.nn.Module, split: str) -> tuple[Tensor, Tensor]:
        """Return logits and labels of this rank's part of a split; every rank must call it."""
        ids, logits = self._inference.rows(model, self._inference.split(split))
        return logits.cpu(), self._labels(ids)

    def _scores(self, logits: Tensor, labels: Tensor, split: str) -> dict[str, float]:
        """Combine all ranks' logits and labels into scores."""
        sums, all_roots = self.objective.metric_sums(logits, labels), None
        if self.divides_roots:
            self._cluster.all_reduce(sums, "control", f"adding up the {split} score")
        if self.objective.needs_all_roots:
            all_roots = self._gather_roots(logits, labels, split)
        of_roots = () if all_roots is None else (all_roots[0],)
        self.met_nan = any(bool(numbers.isnan().any()) for numbers in (sums, *of_roots))
        return self.objective.scores(sums, all_roots)

    def _gather_roots(self, logits: Tensor, labels: Tensor, split: str) -> tuple[Tensor, Tensor]:
        """Return logits and labels of all ranks' roots, on every rank."""
        cluster, width = self._cluster, logits.shape[1]
        if cluster.world == 1 or not self.divides_roots:
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
        labels = self._graph.schema.target_labels
        assert labels is not None
        return labels.classes

    def _split_labels(self, split: str) -> Tensor:
        """Return labels of this rank's part of a split."""
        inference, ids = self._inference, self._inference.split(split).ids
        return self._labels(inference.placement.deal(inference.target, ids)[self._cluster.rank])

    def _labels(self, ids: Ids) -> Tensor:
        """Return labels of nodes of this rank's server, by global id."""
        rows, target = self._inference.scene.rows, self._inference.target
        return self.objective.shape_labels(torch.from_numpy(rows.gather("labels", target, ids)))


class EdgeEvaluator(Evaluator):
    """Scores a model on the labels of a split's edges. Block by block, every rank receives the rows
    of the ends of its part of the edges, and predicts them."""

    baseline_text = "the same answer for every edge"

    def __init__(self, inference: Inference, objective: Objective) -> None:
        super().__init__(inference, objective)
        self._table = cache(
            lambda split: LinkTable.of(self._graph, self._graph.links(split)).in_versions(
                self._inference.sampler.versions_at
            )
        )

    def _predict(self, model: torch.nn.Module, split: str) -> tuple[Tensor, Tensor]:
        """Return logits and labels of this rank's part of the split's edges; collective."""
        table, scene = self._table(split), self._inference.scene
        where = f"scoring edges of {split}"
        ends = {
            node_type: self._inference.ends(
                model, Wanted(split, np.unique(table.ends(node_type)), node_type=node_type)
            )
            for node_type in self._graph.schema.root_types
        }
        # A copy, so that the model's own parameters stay on their device.
        decoder = copy.deepcopy(decoder_of(model)).cpu()
        logits = [torch.empty(0, self._classes, dtype=scene.dtype)]
        for block in self._blocks(table):
            logits.append(score_block(decoder, table, block, ends, self._cluster, where))
        return torch.cat(logits), self._split_labels(split)

    def _split_labels(self, split: str) -> Tensor:
        """Return labels of this rank's part of the split's edges."""
        table, rank = self._table(split), self._cluster.rank
        places = [parts_of(block, self._cluster)[rank] for block in self._blocks(table)]
        own_places = np.concatenate([np.empty(0, np.int64), *places])
        stored = np.asarray(table.label_rows)[own_places]
        return self.objective.shape_labels(torch.from_numpy(stored))

    def _blocks(self, table: LinkTable) -> list[Ids]:
        scene = self._inference.scene
        return blocks_of(table, max(1, _BLOCK_BYTES // (2 * scene.dtype.itemsize * scene.classes)))
