"""The experiments of HiFuse (its section 5), on one machine.

Figure 9 compares whole epochs of the trainer; the others compute the layers alone, on batches that
are handed to all sides.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.paper.cells import Grid
from benchmarks.paper.charts import draw_speed
from benchmarks.paper.experiment import Experiment, Published, Side
from benchmarks.paper.heta import FANOUTS, stage_table
from benchmarks.paper.heta import SCALES as TYPED_SCALES
from benchmarks.paper.hifuse_layers import measure_epochs, measure_operators, measure_rates
from benchmarks.paper.hifuse_tables import (
    balance_table,
    batches_table,
    draw_operators,
    forward_table,
    operators_table,
    rates_table,
)
from benchmarks.paper.measured import count_cells, run_measured
from benchmarks.paper.tables import memory_table, parity_table, speed_table, summary_table

_ENGINE: Final = "model_centric"
_APART: Final = Side("relation by relation", f"{_ENGINE}:model.merge=false:pipeline.depth=0")
_MERGED: Final = Side("merged", f"{_ENGINE}:pipeline.depth=0")
_AHEAD: Final = Side("merged, pipeline", _ENGINE)
_GRID: Final = Grid(
    ("am-like", "bgs-like", "mag-like"),
    ("rgcn", "rgat"),
    scales={"am-like": 0.3, "bgs-like": 1.0, "mag-like": TYPED_SCALES["mag-like"]},
    hidden=(64,),
    layers=2,
    fanouts=(FANOUTS,),
    servers=(1,),
    shared_batch=128,
)
_LAYERS_DIFFER: Final = (
    "Device and host are the same processors here, and computing launches no kernels of a GPU.",
    "All sides compute batches that Hopper's sampler draws by relation, on rows of hidden width.",
    "PyG's R-GCN is RGCNConv, which takes relation after relation; its R-GAT is RGATConv, which "
    "multiplies every edge by a matrix of its relation and takes relation after relation for the "
    "softmax. The paper does not name the classes that it measured.",
)

_EXPERIMENTS: Final = (
    Experiment(
        name="hifuse-fig7",
        title="Epochs of handed-over batches against PyG, and preparing over computing",
        published=(
            Published("section 5.2, Figure 7", "HiFuse over PyG, mean and most", "2.38, 3.04 x"),
            Published(
                "Table 1", "PyG's ratio of CPU to GPU time on AM: R-GCN, R-GAT", "0.13, 0.04"
            ),
            Published("section 5.3, Figure 10", "HiFuse's ratio", "nearer to 1"),
        ),
        grid=_GRID,
        tables=(summary_table, speed_table, balance_table, batches_table),
        differs=(
            *_LAYERS_DIFFER,
            "Sampling counts on every side. Preparing and computing follow each other; what their "
            "overlap saves is in hifuse-fig9.",
        ),
        draw=draw_speed,
        rounds=5,
        carry_out=run_measured(measure_epochs),
    ),
    Experiment(
        name="hifuse-fig8",
        title="Operators of an epoch, and of its selection and aggregation",
        published=(
            Published("section 5.2, Figure 8", "kernels, fewer than PyG", "43.6 to 73.2 %"),
            Published("section 5.3, Figure 11", "selection, fewer than PyG", "up to 39.8 %"),
            Published("section 5.3, Figure 11", "aggregation, fewer than PyG", "up to 46.3 %"),
        ),
        grid=_GRID,
        tables=(operators_table, forward_table, batches_table),
        differs=(
            *_LAYERS_DIFFER,
            "Counted are the operators of torch, most of which would be one kernel of a GPU; the "
            "paper counts kernels. Its shares of selection and aggregation are of all kernels.",
            "Hopper's sampler draws by relation, so that nothing is left to select on any device.",
        ),
        draw=draw_operators,
        carry_out=run_measured(measure_operators),
    ),
    Experiment(
        name="hifuse-table3",
        title="Arithmetic rate and memory bandwidth of the sums over edges",
        published=(
            Published("Table 3", "PyG, AM: R-GCN, share of the GPU's", "0.15 %, memory 2.04 %"),
            Published("Table 3", "HiFuse, AM: R-GCN", "14.42 %, memory 23.42 %"),
            Published("Table 3", "PyG, AM: R-GAT", "0.14 %, memory 2.16 %"),
            Published("Table 3", "HiFuse, AM: R-GAT", "19.41 %, memory 29.95 %"),
        ),
        grid=_GRID,
        tables=(rates_table, batches_table),
        differs=(
            *_LAYERS_DIFFER,
            "Hopper's sums read rows where they lie; PyG's scatter reads messages, and another "
            "operator has gathered these before, whose time is not counted here.",
            "Cached rows are read at more than the memory's rate.",
        ),
        rounds=9,
        carry_out=run_measured(measure_rates),
    ),
)

EXPERIMENTS: Final = (
    *(replace(experiment, timed=False, count_runs=count_cells) for experiment in _EXPERIMENTS),
    Experiment(
        name="hifuse-fig9",
        title="Merged relations, and batches prepared ahead, on one machine",
        published=(
            Published("section 5.3, Figure 9", "R+M, all graphs, over PyG", "up to 1.83 x"),
            Published("section 5.3, Figure 9", "with the pipeline, over PyG", "up to 2.2 x"),
        ),
        grid=_GRID,
        tables=(summary_table, speed_table, stage_table, memory_table, parity_table),
        sides=(_APART, _MERGED, _AHEAD),
        comparisons=(
            (_MERGED.role, _APART.role),
            (_AHEAD.role, _APART.role),
            (_AHEAD.role, _MERGED.role),
        ),
        hardware="one T4 GPU and a Xeon of 8 cores (section 5.1)",
        differs=(
            "The baseline takes relation by relation in Hopper's own kernels; the paper's is PyG.",
            "Device and host are the same two cores here: what prepares batches ahead takes its "
            "time from what computes.",
        ),
        draw=draw_speed,
        rounds=5,
        epochs=5,
    ),
)
