"""Accuracy over time (Heta, section 8.7), and precomputed models (appendix C)."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from statistics import median
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
from benchmarks.paper.experiment import Experiment, Published, Result, Table
from benchmarks.paper.heta import DIFFERS, GRID, HARDWARE, LINK, LOCAL, RAF, VANILLA, ZERO
from benchmarks.paper.tables import number, sides_of


def scaling_table(result: Result) -> Table:
    """Make a table of how many times as fast more servers are, by model and side."""
    alone: dict[tuple[str, str], float] = {}
    rows = []
    for cell, role, side in sides_of(result):
        seconds = median(
            later["seconds"] - earlier["seconds"]
            for run in side["runs"]
            for earlier, later in pairwise(run["points"])
        )
        base = alone.setdefault((cell["model"], role), seconds)
        rows.append(
            [cell["name"], role, str(cell["servers"]), number(seconds), number(base / seconds)]
        )
    headings = ("cell", "side", "servers", "epoch, s", "times as fast as the fewest")
    note = "Medians of all seeds' epochs but the first of each run, scoring left out."
    return Table("More servers", headings, rows, note)


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
    Experiment(
        name="heta-fig18",
        title="SeHGNN and NARS over servers",
        published=(
            Published("Figure 18, appendix C", "SeHGNN on ogbn-mag, 2 GPUs over one", "1.3 x"),
            Published("Figure 18, appendix C", "SeHGNN on ogbn-mag, 4 GPUs over one", "1.6 x"),
        ),
        grid=replace(
            GRID,
            graphs=("mag-like",),
            models=("sehgnn", "nars"),
            scales={"mag-like": 0.02},
            hidden=(128,),
            fanouts=((1,),),
            servers=(1, 2, 4),
        ),
        tables=(scaling_table, scores_table, equality_table),
        sides=(RAF, VANILLA, ZERO),
        words=WORDS,
        runs=RUNS,
        hardware="one server with up to four T4 GPUs (appendix C)",
        link="PCIe",
        differs=(
            "Every server has the same share of the machine's CPUs, whatever their number; the "
            "paper's workers are GPUs of one server, without a network between them.",
            "Hidden width 128, and no propagated labels; 512 in the paper.",
            "Tables are made of the features of papers and of random rows of the other types.",
            "The labels of the stand-in are synthetic.",
        ),
        draw=draw_curves("seconds"),
        epochs=5,
        iterations=0,
        shares_cpus=True,
        carry_out=run_curves,
        count_runs=count_curves,
    ),
)
