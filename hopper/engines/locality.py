"""Locality-optimised training, "LO" in HopGNN, section 5.1: fast, and biased."""

from __future__ import annotations

from hopper.engines.model_centric import ModelCentric
from hopper.micrograph.route import LocalRootSchedule


class Locality(ModelCentric):
    """As ``model_centric``, but each rank's mini-batches are drawn from its own roots only.

    Approximate: a global batch is not drawn uniformly from all training nodes, and each rank sees
    the same community all the time. Its batches are those of
    :class:`hopper.micrograph.route.LocalRootSchedule`; on these its gradient is exact.
    """

    name = "locality"
    exact = False
    schedule = LocalRootSchedule
