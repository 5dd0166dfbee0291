"""The built-in samplers by name, and the search for the configured one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hopper.config.plug_ins import PlugIn, find_plug_in
from hopper.micrograph.labor_sampler import LaborSampler
from hopper.micrograph.layer_sampler import LayerSampler
from hopper.micrograph.sample import NeighborSampler
from hopper.micrograph.temporal_sampler import TemporalSampler
from hopper.micrograph.weighted_sampler import ReplacementSampler, WeightedSampler

SAMPLERS: Final[dict[str, type[NeighborSampler]]] = {
    "node": NeighborSampler,
    # "full" differs in its fanouts only, which take all neighbours.
    "full": NeighborSampler,
    "layer": LayerSampler,
    "labor": LaborSampler,
    "weighted": WeightedSampler,
    "replacement": ReplacementSampler,
    "temporal": TemporalSampler,
}
_FILLED_PARAMETERS: Final = ("topologies", "original_ids", "target", "fanouts", "seed")
"""parameters of a sampler's constructor whose values come from the graph and ``[sampler]``"""


def find_sampler(kind: str, options: Mapping[str, Any]) -> PlugIn[NeighborSampler]:
    """Find the sampler that ``sampler.kind`` names, with the options of ``sampler.kind_options``.

    A ConfigError names the key, if there is no such sampler, or an option is unknown, missing or of
    a wrong type.
    """
    return find_plug_in(
        "sampler.kind", kind, NeighborSampler, SAMPLERS, options, _FILLED_PARAMETERS, derives=True
    )
