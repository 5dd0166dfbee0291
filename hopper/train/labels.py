"""Whether every training node can be trained on."""

from __future__ import annotations

import torch

from hopper.features import PartitionedRows
from hopper.models import Objective, check_training_labels
from hopper.partition import PartitionedGraph


def check_labels(graph: PartitionedGraph, rows: PartitionedRows) -> None:
    """Check the training labels that one server stores.

    Parameters
    ----------
    rows: the server's.

    Raises
    ------
    GraphError: as of :func:`check_training_labels`.
    """
    if graph.schema.target_relations:
        # A link is its own label.
        return
    target = graph.schema.target_type()
    train_ids = graph.split("train")
    global_ids = graph.global_ids(target)[train_ids]
    local = rows.is_local(target, global_ids)
    labels = graph.schema.labels[target]
    stored = torch.from_numpy(rows.local.gather("labels", target, global_ids[local]))
    check_training_labels(
        labels.kind,
        Objective(labels.kind).shaped(stored),
        torch.from_numpy(train_ids[local]),
        labels.classes,
    )
