"""Samplers by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hopper.micrograph.labor_sampler import LaborSampler
from hopper.micrograph.layer_sampler import LayerSampler
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.temporal_sampler import TemporalSampler
from hopper.micrograph.weighted_sampler import ReplacementSampler, WeightedSampler
from hopper.plug_ins import PlugIn, find_plug_in

SAMPLERS: Final[dict[str, type[NeighborSampler]]] = {
    "node": NeighborSampler,
    # With fanouts that take all.
    "full": NeighborSampler,
    "layer": LayerSampler,
    "labor": LaborSampler,
    "weighted": WeightedSampler,
    "replacement": ReplacementSampler,
    "temporal": TemporalSampler,
}
_GIVEN: Final = ("topologies", "original_ids", "target", "fanouts", "seed")
"""parameters of a sampler's constructor that the graph and ``[sampler]`` fill"""


def find_sampler(kind: str, options: Mapping[str, Any]) -> PlugIn[NeighborSampler]:
    """The sampler that ``sampler.kind`` names, with the options of ``sampler.kind_options``.

    Raises
    ------
    ConfigError: there is none, or an option is unknown, missing or of another type; names the key.
    """
    return find_plug_in(
        "sampler.kind", kind, NeighborSampler, SAMPLERS, options, _GIVEN, derives=True
    )
