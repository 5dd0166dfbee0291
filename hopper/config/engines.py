"""The engines, and the sections ``[hop]``, ``[cooperative]`` and ``[raf]`` of three of them."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field, model_validator

from hopper.config.section import NonNegative, Section

ENGINES: Final = ("model_centric", "hop", "zero_hop", "cooperative", "raf", "locality")
COMPARED_WITH: Final = ("model_centric", "locality")
"""The engines that speed-ups are relative to."""
BASELINES: Final = {
    "naive": "benchmarks.baselines.naive:Naive",
    "neutronstar": "benchmarks.baselines.neutronstar:NeutronStar",
    "p3": "benchmarks.baselines.p3:P3",
}
"""The engines of papers that only a checkout of the repository has, by their names in a
comparison."""
TRIALS_ENGINE: Final = "hop"
"""The engine that can train several different models at once."""


class Hop(Section):
    """``[hop]``: The engine ``hop``, whose models travel (HopGNN, section 5)."""

    migrate: Literal["model", "gradients"] = "gradients"
    """What travels around the ring of ranks. "gradients" sends the gradients so far, for all ranks
    have the same parameters, and a rank trains on its own rows while they are on their way. "model"
    sends parameters as well and waits for them, as HopGNN does. Independent models always send
    both."""
    pregather: bool = True
    """Whether each remote row of an iteration is fetched once, before the first time step."""
    merge: Literal["off", "adaptive"] | NonNegative = "off"
    """How many time steps are dissolved. "off" dissolves none. "adaptive" tries numbers before the
    run, and dissolves one more step only where that is shown to be faster. See
    docs/inside/merging.md."""
    merge_selection: Literal["fewest", "random"] = "fewest"
    """Which time step is dissolved. "fewest" takes the step with the fewest roots. "random" draws
    one for each model."""
    replicas: Literal["synchronous", "independent"] = "synchronous"
    """How many models are trained. "synchronous" trains one model on all ranks together.
    "independent" trains several different models at once. See docs/howto/sweeps.md."""
    share_sampling: bool = True
    """Whether independent models share roots and draws, so that rows are read once for all. false =
    each model has its own order of roots and its own draws."""
    trials: list[dict[str, str | int | float | list[int]]] = Field(default=[])
    """The keys that differ in each independent model, as {"section.key" = value}. Empty = one model
    per rank, with seeds that count up."""

    @model_validator(mode="after")
    def _check(self) -> Hop:
        if self.replicas == "synchronous":
            if self.trials:
                raise ValueError('trials: they need replicas = "independent"')
            return self
        if isinstance(self.merge, int) and self.merge > 0:
            raise ValueError(
                f"merge: {self.merge} time steps cannot be dissolved with replicas = "
                '"independent": all models share what a rank has read, and merging would give each '
                'of them other roots there; expected "off" (which "adaptive" means here)'
            )
        return self


class Cooperative(Section):
    """``[cooperative]``: The engine ``cooperative``, whose hidden rows travel."""

    wire: Literal["exact", "bfloat16", "float16"] = "exact"
    """The format in which hidden rows and their gradients travel. "exact" sends them as they are.
    The others are approximations."""


class Raf(Section):
    """``[raf]``: The engine ``raf``, which aggregates by relation first (Heta, section 4)."""

    reduce: Literal["scatter", "designated"] = "scatter"
    """Who combines the partials of the roots. "scatter" gives each server an equal part of the
    batch. "designated" gives one server the whole batch (the paper's designated worker)."""
