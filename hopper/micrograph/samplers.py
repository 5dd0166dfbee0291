"""Samplers by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from hopper.micrograph.labor_sampler import LaborSampler
from hopper.micrograph.layer_sampler import LayerSampler
from hopper.micrograph.sample import NeighborSampler
from hopper.plug_ins import find_plug_in, import_class

SAMPLERS: Final[dict[str, type[NeighborSampler]]] = {
    "node": NeighborSampler,
    "layer": LayerSampler,
    "labor": LaborSampler,
}
_GIVEN: Final = ("topologies", "original_ids", "target", "fanouts", "seed")
"""parameters of a sampler's constructor that the graph and ``[sampler]`` fill"""


def find_sampler(kind: str) -> type[NeighborSampler]:
    """The sampler that ``sampler.kind`` names.

    Raises
    ------
    ConfigError: there is none; names the key.
    """
    if kind in SAMPLERS:
        return SAMPLERS[kind]
    base = NeighborSampler
    return import_class(
        "sampler.kind", kind, base, f"subclass of {base.__module__}.{base.__name__}"
    )


def sampler_with(kind: str, options: Mapping[str, Any]) -> Callable[..., NeighborSampler]:
    """The same, called with the options of ``sampler.kind_options`` besides what it is given.

    Raises
    ------
    ConfigError: as of :func:`find_sampler`; or an option is unknown, missing or of another type.
    """
    find_sampler(kind)
    found = find_plug_in("sampler.kind", kind, NeighborSampler, SAMPLERS, options, _GIVEN)
    made: Callable[..., NeighborSampler] = found.kind
    return partial(made, **found.options)
