"""What a graph brings and a run does not use, so that nothing is ignored in silence."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from hopper.engines.request import Request

_MOST_NAMES: Final = 5
SPLITS: Final = ("train", "val", "test")


def unused(request: Request) -> list[str]:
    """A line for each kind of what is there and has no effect on a run."""
    schema, reads = request.schema, request.reads
    lines = []
    relations = {reads.relations[each] for read, _ in reads.layers for each in read}
    edge_features = [
        str(each) for each in relations if schema.relations[each].feature_dim is not None
    ]
    if edge_features:
        model = request.config.model.name
        lines.append(f"edge features of {_listed(edge_features)}: model {model} reads none")
    not_met = [str(each) for each in schema.relations if each not in relations]
    if not_met:
        lines.append(f"relations {_listed(not_met)}: not read by this model")
    reached = {rows.node_type for rows in reads.inputs.values()}
    types = [each for each in schema.node_types if each not in reached]
    if types:
        roots = ", ".join(schema.root_types)
        lines.append(f"node types {_listed(types)}: no hop from {roots} reaches them")
    links = list(map(str, schema.target_relations))
    labels = [each for each in schema.labels if links or each != reads.target]
    if labels:
        predicted = _listed(links) or reads.target
        lines.append(f"labels of {_listed(labels)}: only {predicted} is predicted")
    if not links:
        own = request.config.task.model_dump(exclude={"kind"}, exclude_defaults=True)
        lines += [f"task.{key}: nodes are predicted, not links" for key in own]
    splits = [each for each in schema.splits if each not in SPLITS]
    if splits:
        lines.append(f"splits {_listed(splits)}: expected train, val and test")
    return [f"not used: {line}" for line in lines]


def _listed(names: Collection[str]) -> str:
    some = ", ".join(sorted(names)[:_MOST_NAMES])
    more = len(names) - _MOST_NAMES
    return f"{some} and {more} more" if more > 0 else some
