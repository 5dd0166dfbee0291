"""HiFuse, Figure 9: what merging all relations of a layer, and preparing batches ahead, save; in
whole epochs of the trainer, on one machine."""

from __future__ import annotations

from typing import Final

from benchmarks.paper.cells import Grid
from benchmarks.paper.charts import draw_speed
from benchmarks.paper.experiment import Experiment, Published, Side
from benchmarks.paper.heta import FANOUTS, stage_table
from benchmarks.paper.heta import SCALES as TYPED_SCALES
from benchmarks.paper.tables import memory_table, parity_table, speed_table, summary_table

_ENGINE: Final = "model_centric"
_APART: Final = Side("relation by relation", f"{_ENGINE}:model.merge=false:pipeline.depth=0")
_MERGED: Final = Side("merged", f"{_ENGINE}:pipeline.depth=0")
_AHEAD: Final = Side("merged, pipeline", _ENGINE)

EXPERIMENTS: Final = (
    Experiment(
        name="hifuse-fig9",
        title="Merged relations, and batches prepared ahead, on one machine",
        published=(
            Published("section 5.3, Figure 9", "R+M, all graphs, over PyG", "up to 1.83 x"),
            Published("section 5.3, Figure 9", "with the pipeline, over PyG", "up to 2.2 x"),
        ),
        grid=Grid(
            ("am-like", "bgs-like", "mag-like"),
            ("rgcn", "rgat"),
            scales={"am-like": 0.3, "bgs-like": 1.0, "mag-like": TYPED_SCALES["mag-like"]},
            hidden=(64,),
            layers=2,
            fanouts=(FANOUTS,),
            servers=(1,),
            shared_batch=128,
        ),
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
