"""Miss-penalty ratios (Heta, section 6)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.paper.experiment import Experiment, Published, Side
from benchmarks.paper.heta import GRID, HARDWARE, RAF
from benchmarks.paper.penalties import (
    WORDS,
    count_profiles,
    draw_penalties,
    learnable_penalty_table,
    penalty_table,
    run_profiles,
)

EXPERIMENTS: Final = (
    Experiment(
        name="heta-fig7",
        title="What a missing byte costs, by node type",
        published=(
            Published(
                "Figure 7(a)", "types of Donor with 7 to 789 numbers", "the narrower, the more"
            ),
            Published("Figure 7(b)", "learnable rows against features, width 128", "more"),
        ),
        grid=replace(GRID, graphs=("donor-like", "mag-like")),
        tables=(penalty_table, learnable_penalty_table),
        sides=(
            Side("rows of other servers", "model_centric"),
            Side("own rows", f"{RAF.label}:cache.memory=device"),
        ),
        words=WORDS,
        runs="rounds: {rounds}, in each of which every side is profiled over 2 epochs of "
        "{iterations} iterations",
        hardware=HARDWARE,
        differs=(
            "The paper's misses go from a server's memory to its GPU. Here features of other "
            "servers come over the link, and own features from a mapped file, most of which the "
            "kernel keeps in memory. A learnable row is read from its file and written back as far "
            "as the disk.",
            "Ranks measure at once, as they train, so types that several ranks read share the "
            "link, the disk and the cores.",
        ),
        draw=draw_penalties,
        epochs=1,
        timed=False,
        carry_out=run_profiles,
        count_runs=count_profiles,
    ),
)
