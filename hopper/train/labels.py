"""Checks of the labels of training nodes and edges."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.features import PartitionedRows
from hopper.graph.check_values import is_labelled
from hopper.graph.schema import Labels
from hopper.models import check_training_labels
from hopper.partition import PartitionedGraph


def check_labels(graph: PartitionedGraph, rows: Iterable[PartitionedRows]) -> None:
    """Check the training labels that some servers store. Every server stores all labels of edges.

    Parameters
    ----------
    rows: the rows of each of these servers.

    Raises
    ------
    GraphError: a training root's label is missing or not valid.
    """
    labels = graph.schema.target_labels
    if labels is None:
        # A link is its own label.
        return
    if graph.schema.target_relations:
        links = graph.links("train")
        assert links.labels is not None
        stored = torch.from_numpy(np.array(links.labels).reshape(links.count, -1))
        _check(labels, stored, np.array(links.ids))
        return
    target = graph.schema.target_type()
    train_ids = graph.split("train")
    global_ids = graph.global_ids(target)[train_ids]
    for server_rows in rows:
        local = server_rows.is_local(target, global_ids)
        stored = torch.from_numpy(server_rows.local.gather("labels", target, global_ids[local]))
        _check(labels, stored, train_ids[local])


def _check(labels: Labels, stored: torch.Tensor, ids: NDArray[np.int64]) -> None:
    if labels.kind == "tasks":
        has_label = is_labelled(labels, stored.numpy())
        if not has_label.all():
            examples = ids[~has_label][:5].tolist()
            raise GraphError(
                "labels: expected one of some task for every training root; given none at original "
                f"ids {examples} ({int((~has_label).sum())} in all)"
            )
        return
    shaped = stored[:, 0] if labels.kind == "class" else stored
    check_training_labels(labels.kind, shaped, torch.from_numpy(ids), labels.classes)
