"""Locality-optimised training, which is fast and biased ("LO" in HopGNN, section 5.1)."""

from __future__ import annotations

from hopper.engines.model_centric import ModelCentric
from hopper.micrograph.route import LocalRootSchedule


class Locality(ModelCentric):
    """Trains as ``model_centric``, but draws each rank's mini-batches from its own roots only.

    It is approximate: a global batch is not drawn uniformly from all training nodes, and each rank
    sees the same community all the time. On its own batches, which
    :class:`hopper.micrograph.route.LocalRootSchedule` deals, its gradient is exact.
    """

    name = "locality"
    exact = False
    schedule = LocalRootSchedule
