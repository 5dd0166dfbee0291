"""Checks that a graph divided by relation stores what a model reads, on the right servers."""

from __future__ import annotations

from hopper.engines.assemble import make_model
from hopper.engines.request import Request
from hopper.errors import RequestError
from hopper.models.relational import HGNN


def check_division(request: Request) -> None:
    """Refuse a model that follows relations which the servers of a divided graph lack, or that
    needs all edges of a node where servers share its edges."""
    _check_relations(request)
    if not all(partition.is_whole for partition in request.graph.partitions):
        _check_parts(request)


def _check_relations(request: Request) -> None:
    """Refuse a model that follows relations which the servers of a divided graph lack."""
    graph, where, tree = request.graph, request.where, request.reads.tree
    meta = graph.description["meta"]
    if request.config.model.layers > meta["layers"]:
        raise RequestError(
            f"model.layers: {where} was divided for {meta['layers']} hops; expected at most that "
            f"many, given {request.config.model.layers}"
        )
    assert tree is not None
    paths = meta.get("metapaths")
    divided_along = "paths that partition.json does not record"
    if paths is not None:
        divided_along = "; ".join(",".join(path) for path in paths) or "every relation"
    assigned = {relation for partition in graph.partitions for relation in partition.roots}
    unassigned = [relation for relation in tree.roots if relation not in assigned]
    if unassigned:
        raise RequestError(
            f"model.metapaths: {where} was divided along {divided_along}; no server aggregates "
            f"{', '.join(map(str, unassigned))} for the roots, as the model does"
        )
    for server, partition in enumerate(graph.partitions):
        followed = [relation for relation in partition.roots if relation in tree.roots]
        if not followed:
            raise RequestError(
                f"model.metapaths: server {server} holds {', '.join(map(str, partition.roots))} "
                "for the roots, which no metapath begins with; divide the graph with these "
                "--metapath"
            )
        lacking = sorted(set(tree.relations_of(followed)) - partition.relations)
        if lacking:
            raise RequestError(
                f"model.metapaths: {where} was divided along {divided_along}; server {server} lacks"
                f" {', '.join(map(str, lacking))}, which the model follows below its root relations"
            )


def _check_parts(request: Request) -> None:
    """Refuse draws and aggregations that need all edges of a node, if servers share its edges."""
    config = request.config
    parts = [partition for partition in request.reads.partitions if not partition.is_whole]
    roots = sorted({relation for partition in parts for relation in partition.roots})
    stored = sorted({str(request.reads.relations[relation]) for relation in roots})
    where = f"{request.where}, where several servers have a part of {', '.join(stored)} each"
    if not config.sampler.draws_parts:
        how = " with unbiased = true" if config.sampler.kind == "weighted" else ""
        raise RequestError(
            f"sampler.kind: {config.sampler.kind!r}{how} reads all in-edges of a node, which no "
            f"server has in {where}; expected 'node', 'replacement', 'temporal', or 'weighted' "
            "with unbiased = false"
        )
    model = make_model(request)
    assert isinstance(model, HGNN)
    for layer in model.root_layers():
        combination = layer.combination
        if not combination.has_parts():
            raise RequestError(
                f"model.combine: {type(combination).__name__} makes partials of whole relations, "
                f"which no server has in {where}; expected one that defines join() too"
            )
        for aggregation in map(layer.aggregation, roots):
            key = "model.aggregate" if config.model.aggregate else "model.name"
            name = type(aggregation).__name__
            if not aggregation.has_parts():
                raise RequestError(
                    f"{key}: {name} needs all of a node's neighbours at once, which no server has "
                    f"in {where}; expected an AGG_r whose class defines join(), or a SumLayer "
                    "without another aggregate() or own_term()"
                )
            if aggregation.part_width() is not None and combination.algebra != "sum":
                raise RequestError(
                    f"{key}: parts of {name} can be joined only under a sum over relations, given "
                    f"{type(combination).__name__}, with {where}"
                )
