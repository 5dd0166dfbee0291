"""Whether a graph that was divided by relation has what a model follows, where it needs it."""

from __future__ import annotations

from hopper.engines.request import Request
from hopper.errors import RequestError
from hopper.models.relational import HGNN


def check_followed(request: Request) -> None:
    """Refuse a model that follows what the servers of a graph divided by relation do not hold where
    they need it.

    Raises
    ------
    RequestError: names the key, the server and what it lacks.
    """
    graph, where, tree = request.graph, request.where, request.reads.tree
    meta = graph.description["meta"]
    if request.config.model.layers > meta["layers"]:
        raise RequestError(
            f"model.layers: {where} was divided for {meta['layers']} hops; expected at most that "
            f"many, given {request.config.model.layers}"
        )
    assert tree is not None
    paths = meta.get("metapaths")
    told = "paths that partition.json does not tell"
    if paths is not None:
        told = "; ".join(",".join(path) for path in paths) or "every relation"
    nobodys = [
        each for each in tree.roots if all(each not in held.roots for held in graph.holdings)
    ]
    if nobodys:
        raise RequestError(
            f"model.metapaths: {where} was divided along {told}; no server aggregates "
            f"{', '.join(map(str, nobodys))} for the roots, as the model does"
        )
    for server, held in enumerate(graph.holdings):
        followed = [each for each in held.roots if each in tree.roots]
        if not followed:
            raise RequestError(
                f"model.metapaths: server {server} holds {', '.join(map(str, held.roots))} for the "
                "roots, which no metapath begins with; divide the graph with these --metapath"
            )
        lacking = sorted(set(tree.relations_of(followed)) - held.relations)
        if lacking:
            raise RequestError(
                f"model.metapaths: {where} was divided along {told}; server {server} lacks "
                f"{', '.join(map(str, lacking))}, which the model follows below its root relations"
            )


def check_parts(request: Request, model: HGNN) -> None:
    """Refuse draws and aggregations that need all edges of a node, where servers have some each.

    Parameters
    ----------
    model: that the request is for.

    Raises
    ------
    RequestError: names the key, what was expected and what was given.
    """
    config, cut = request.config, [h for h in request.reads.holdings if h.part.parts > 1]
    roots = sorted({each for held in cut for each in held.roots})
    stored = sorted({str(request.reads.relations[each]) for each in roots})
    where = f"{request.where}, where several servers have a part of {', '.join(stored)} each"
    if not config.sampler.draws_parts:
        how = " with unbiased = true" if config.sampler.kind == "weighted" else ""
        raise RequestError(
            f"sampler.kind: {config.sampler.kind!r}{how} reads all in-edges of a node, which no "
            f"server has in {where}; expected 'node', 'replacement', 'temporal', or 'weighted' "
            "with unbiased = false"
        )
    for layer in model.root_layers():
        combination = layer.combination
        if not combination.has_parts():
            raise RequestError(
                f"model.combine: {type(combination).__name__} makes partials of whole relations, "
                f"which no server has in {where}; expected one that defines joined() too"
            )
        for own in map(layer.aggregation, roots):
            key = "model.aggregate" if config.model.aggregate else "model.name"
            name = type(own).__name__
            if not own.has_parts():
                raise RequestError(
                    f"{key}: {name} needs all of a node's neighbours at once, which no server has "
                    f"in {where}; expected an AGG_r whose class defines joined(), or a SumLayer "
                    "without another aggregate() or own_term()"
                )
            if own.part_width() is not None and combination.algebra != "sum":
                raise RequestError(
                    f"{key}: parts of {name} can be joined under a sum over relations alone, given "
                    f"{type(combination).__name__}, with {where}"
                )
