"""All experiments that have a command."""

from __future__ import annotations

from typing import Final

from benchmarks.paper import (
    baselines,
    cooperative,
    distdglv2,
    heta,
    heta_accuracy,
    heta_penalties,
    hifuse,
    hopgnn,
    merging_loss,
    pipeline,
)

EXPERIMENTS: Final = {
    experiment.name: experiment
    for experiment in (
        *(*hopgnn.EXPERIMENTS, *cooperative.EXPERIMENTS, *baselines.EXPERIMENTS),
        *(*heta.EXPERIMENTS, *heta_accuracy.EXPERIMENTS, *heta_penalties.EXPERIMENTS),
        *(*hifuse.EXPERIMENTS, *distdglv2.EXPERIMENTS),
        *(*pipeline.EXPERIMENTS, *merging_loss.EXPERIMENTS),
    )
}
"""by name of the command"""
