"""Finds data of a graph and settings that have no effect on a run, so that users are told."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from hopper.config import Task
from hopper.config.model import EDGE_MODELS
from hopper.engines.request import Request
from hopper.graph.schema import Predicted, Relation
from hopper.micrograph.samplers import find_sampler

_MOST_NAMES: Final = 5
SPLITS: Final = ("train", "val", "test")
_OF_TASKS: Final = {"weights", "metrics", "selects"}
_READ: Final[Mapping[Predicted, set[str]]] = {
    "node": {"kind"},
    "edge": {"kind", "dim", "decoder", "decoder_options"},
    "link": set(Task.model_fields),
}
"""The keys of ``[task]`` that are read, by what is predicted."""


def describe_unused(request: Request) -> list[str]:
    """Describe data and settings that have no effect on a run, one line for each kind."""
    schema, reads = request.schema, request.reads
    relations = {reads.relations[name] for names, _ in reads.layers for name in names}
    lines = _describe_values(request, relations)
    unread = [str(relation) for relation in schema.relations if relation not in relations]
    if unread:
        lines.append(f"relations {_join_names(unread)}: not read by this model")
    reached = {rows.node_type for rows in reads.inputs.values()}
    unreached = [node_type for node_type in schema.node_types if node_type not in reached]
    if unreached:
        roots = ", ".join(schema.root_types)
        lines.append(f"node types {_join_names(unreached)}: no hop from {roots} reaches them")
    targets = [*map(str, schema.target_relations)] or [reads.target]
    labels = [str(labelled) for labelled in schema.labels if str(labelled) not in targets]
    if labels:
        lines.append(f"labels of {_join_names(labels)}: only {_join_names(targets)} is predicted")
    lines += _describe_task_keys(request)
    wire = request.config.cluster.feature_wire
    forms = {kind.feature_dtype for kind in schema.feature_tables.values()}
    if wire != "stored" and "float32" not in forms:
        lines.append(f"cluster.feature_wire = {wire!r}: no rows of features are float32")
    splits = [split for split in schema.splits if split not in SPLITS]
    if splits:
        lines.append(f"splits {_join_names(splits)}: expected train, val and test")
    return [f"not used: {line}" for line in lines]


def _describe_values(request: Request, relations: Collection[Relation]) -> list[str]:
    """Describe features, weights and times that the run does not read."""
    schema, lines = request.schema, []
    edge_features = [
        str(relation)
        for relation in relations
        if schema.relations[relation].feature_dim is not None
    ]
    if edge_features and not request.config.model.edge_features:
        lines.append(
            f"edge features of {_join_names(edge_features)}: read with model.edge_features = true, "
            f"by {', '.join(EDGE_MODELS)}"
        )
    weighted = [str(relation) for relation in relations if schema.relations[relation].weighted]
    sampler = request.config.sampler
    if weighted and not find_sampler(sampler.kind, sampler.kind_options).kind.reads_weights:
        lines.append(
            f'weights of {_join_names(weighted)}: only sampler.kind = "weighted" reads them'
        )
    timed = [
        str(target) for target in schema.timed if target in relations or isinstance(target, str)
    ]
    if timed and not request.reads_times:
        lines.append(f'times of {_join_names(timed)}: only sampler.kind = "temporal" reads them')
    return lines


def _describe_task_keys(request: Request) -> list[str]:
    """Describe the keys of ``[task]`` that do not concern what is predicted."""
    schema, task, lines = request.schema, request.config.task, []
    labels = schema.target_labels
    if labels is None or labels.kind != "tasks":
        alone = sorted(_OF_TASKS & task.model_dump(exclude_defaults=True).keys())
        lines += [f"task.{key}: there are no labels of several tasks" for key in alone]
    read_keys = _READ[schema.predicted] | _OF_TASKS
    unread = task.model_dump(exclude=read_keys, exclude_defaults=True)
    predicted = "nodes" if schema.predicted == "node" else "labels of edges"
    return lines + [f"task.{key}: {predicted} are predicted, not links" for key in unread]


def _join_names(names: Collection[str]) -> str:
    listed = ", ".join(sorted(names)[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{listed} and {more} more" if more > 0 else listed
