"""Accuracy over time (Heta, section 8.7)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.paper.convergence import (
    RUNS,
    WORDS,
    count_curves,
    draw_curves,
    equality_table,
    run_curves,
    scores_table,
)
from benchmarks.paper.experiment import Experiment, Published
from benchmarks.paper.heta import DIFFERS, GRID, HARDWARE, LINK, LOCAL, RAF, VANILLA

EXPERIMENTS: Final = (
    Experiment(
        name="heta-fig16",
        title="Accuracy over time",
        published=(
            Published("section 8.7, Figure 16", "Heta and DGL, training accuracy", "the same"),
            Published("section 8.7", "test accuracy, R-GAT on IGB-HET", "68 %"),
            Published("section 8.7", "test accuracy, HGT on MAG240M", "66 %"),
        ),
        grid=replace(
            GRID,
            graphs=("igbhet-like", "mag240m-like"),
            models=("rgat", "hgt"),
            scales={"igbhet-like": 0.001, "mag240m-like": 0.002},
            shared_batch=256,
            pairs=(("igbhet-like", "rgat"), ("mag240m-like", "hgt")),
        ),
        tables=(scores_table, equality_table),
        sides=(RAF, VANILLA, LOCAL),
        words=WORDS,
        runs=RUNS,
        hardware=HARDWARE,
        link=LINK,
        differs=(
            *DIFFERS,
            "Batches have 256 roots over all ranks instead of 1,024, so that an epoch of a small "
            "graph has several iterations.",
            "The labels of stand-ins are synthetic: their accuracy says nothing of the published "
            "graphs', only differences between sides do.",
        ),
        draw=draw_curves("seconds"),
        epochs=12,
        iterations=0,
        carry_out=run_curves,
        count_runs=count_curves,
    ),
)
