"""The arguments that PyG's two neighbor loaders share, as Hopper's sampler understands them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch_geometric.data import Data, HeteroData

from hopper.errors import RequestError
from hopper.graph.schema import GraphSchema, Relation
from hopper.micrograph.sample import NeighborSampler
from hopper.pipeline.connected import ConnectedGraph
from hopper.pipeline.loader import Loader
from hopper.pyg.data import is_typed

Fanouts = Sequence[int] | Mapping[tuple[str, str, str], Sequence[int]]
_WITHOUT_EFFECT: Final = (
    "num_workers",
    "persistent_workers",
    "prefetch_factor",
    "multiprocessing_context",
    "worker_init_fn",
    "filter_per_worker",
    "is_sorted",
    "generator",
)
"""arguments that only say how PyG's loaders do the same work"""


@dataclass(frozen=True)
class Draws:
    """How neighbors are drawn.

    Attributes
    ----------
    fanouts: what ``[sampler]`` is checked with: as many as there are hops.
    fanouts_of: by relation, those that are drawn.
    settings: further keys of ``[sampler]``.
    exact: whether what is drawn for a root depends on nothing but the root.
    """

    fanouts: tuple[int, ...]
    fanouts_of: Mapping[Relation, tuple[int, ...]]
    settings: Mapping[str, Any]
    exact: bool

    def make_sampler(self, graph: ConnectedGraph, node_type: str, seed: int) -> NeighborSampler:
        """Make the sampler of roots of a type."""
        return graph.sampler(
            self.fanouts,
            seed=seed,
            node_type=node_type,
            fanouts_of=self.fanouts_of,
            **self.settings,
        )


class SampledLoader(Loader[Data | HeteroData]):
    """What PyG's two neighbor loaders share: the end of a batch, and how they describe themselves.

    A derived class sets the attributes.

    Attributes
    ----------
    transform: called with a batch.
    pins: whether batches are pinned.
    asked: ``num_neighbors`` and ``placement``, in words.
    draws: how neighbors are drawn.
    """

    transform: Callable[[Any], Any] | None
    pins: bool
    asked: str
    draws: Draws

    def finish(self, batch: Any) -> Any:
        """Return a batch as it is handed out."""
        if self.transform is not None:
            batch = self.transform(batch)
        return batch.pin_memory() if self.pins else batch

    def __repr__(self) -> str:
        expansion = "exact" if self.draws.exact else "approximate"
        return (
            f"{type(self).__name__}({self.graph.graph.path}, {self.asked}, {expansion} expansion)"
        )


def read_draws(
    schema: GraphSchema,
    num_neighbors: Fanouts,
    *,
    replace: bool = False,
    subgraph_type: Any = "directional",
    disjoint: bool = False,
    temporal_strategy: str = "uniform",
    time_attr: str | None = None,
    weight_attr: str | None = None,
) -> Draws:
    """Check what a loader was asked to draw.

    Raises
    ------
    RequestError: names an argument that is wrong, or that Hopper cannot honour.
    """
    fanouts_of = _fanouts_by_relation(schema, num_neighbors)
    hops = {len(fanouts) for fanouts in fanouts_of.values()}
    if len(hops) != 1 or 0 in hops:
        raise RequestError(
            f"num_neighbors: expected equally many hops of all relations, given {sorted(hops)}"
        )
    for relation, fanouts in fanouts_of.items():
        if any(fanout < -1 for fanout in fanouts):
            raise RequestError(
                f"num_neighbors: of {relation}: expected -1 (all), 0 or more, given {fanouts}"
            )
    if getattr(subgraph_type, "value", subgraph_type) != "directional":
        raise RequestError(
            'subgraph_type: expected "directional", since edges between all drawn nodes would '
            f"depend on a root's companions; given {subgraph_type!r}"
        )
    if disjoint and time_attr is None:
        raise RequestError(
            "disjoint: expected False; roots share nodes here, and draws do not depend on it"
        )
    if temporal_strategy not in ("uniform", "last"):
        raise RequestError(
            f'temporal_strategy: expected "uniform" or "last", given {temporal_strategy!r}'
        )
    if sum((replace and weight_attr is None, weight_attr is not None, time_attr is not None)) > 1:
        raise RequestError(
            "time_attr: draws in time are uniform and without replacement; expected no "
            "weight_attr and replace=False beside it"
        )
    if weight_attr is not None and not any(kind.weighted for kind in schema.relations.values()):
        raise RequestError("weight_attr: expected none, since the graph has no weights of edges")
    is_recent = time_attr is not None and temporal_strategy == "last"
    has_same_fanouts = all(len(set(fanouts)) == 1 for fanouts in fanouts_of.values())
    takes_all = all(fanout in (-1, 0) for fanouts in fanouts_of.values() for fanout in fanouts)
    settings: dict[str, Any] = {}
    if time_attr is not None:
        pick = "recent" if is_recent else "uniform"
        settings = {"kind": "temporal", "kind_options": {"pick": pick}}
    elif weight_attr is not None:
        settings = {"kind": "weighted", "kind_options": {"replace": replace}}
    elif replace:
        settings = {"kind": "replacement"}
    if has_same_fanouts and not is_recent and not takes_all:
        settings["expansion"] = "once"
    first = next(iter(fanouts_of.values()))
    common = tuple(1 if fanout == 0 else fanout for fanout in first)
    if settings.get("expansion") == "once":
        common = (common[0],) * len(common)
    return Draws(common, fanouts_of, settings, has_same_fanouts)


def _fanouts_by_relation(
    schema: GraphSchema, num_neighbors: Fanouts
) -> dict[Relation, tuple[int, ...]]:
    relations = schema.ordered_relations()
    if not isinstance(num_neighbors, Mapping):
        return dict.fromkeys(relations, tuple(num_neighbors))
    given = {Relation(*name): tuple(fanouts) for name, fanouts in num_neighbors.items()}
    for name in [*given, *relations]:
        if name not in schema.relations or name not in given:
            raise RequestError(
                f"num_neighbors: expected {', '.join(map(str, relations))}, given "
                f"{', '.join(map(str, given))}"
            )
    return given


def check_others(arguments: Mapping[str, Any]) -> bool:
    """Check further arguments of PyG's loaders, and return whether batches are pinned.

    Raises
    ------
    RequestError: there is no such argument, or Hopper cannot honour it.
    """
    for name in arguments:
        if name != "pin_memory" and name not in _WITHOUT_EFFECT:
            raise RequestError(f"{name}: this loader has no such argument")
    return bool(arguments.get("pin_memory")) and torch.cuda.is_available()


def find_input(schema: GraphSchema, given: Any, argument: str) -> tuple[Any, Any]:
    """Return the node type or relation that an argument names, and what it says of it.

    Parameters
    ----------
    given: ids, or a type, or a type and ids; "" stands for the only type.
    """
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], str | tuple):
        return given[0], given[1]
    if isinstance(given, str) and given in schema.node_types:
        return given, None
    if is_typed(schema) and not isinstance(given, str):
        raise RequestError(
            f"{argument}: expected a type and its ids, since the graph has several types, given "
            f"{type(given).__name__}"
        )
    return "", given
