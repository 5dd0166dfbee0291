"""The experiments of DistDGLv2 (its section 5), on CPUs.

Its data path is Hopper's pipeline, under an engine whose ranks draw batches from their own roots
(``locality``).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.paper.baselines import SYSTEMS, together_table
from benchmarks.paper.cells import Grid
from benchmarks.paper.charts import draw_speed
from benchmarks.paper.cluster_batches import CLUSTER_GCN, clusters_table, run_cluster_curves
from benchmarks.paper.convergence import (
    RUNS,
    WORDS,
    count_curves,
    draw_curves,
    scores_table,
)
from benchmarks.paper.experiment import Experiment, Published, Side
from benchmarks.paper.heta import GLOBAL_BATCH, stage_table
from benchmarks.paper.heta import SCALES as TYPED_SCALES
from benchmarks.paper.hopgnn import BASE, COOPERATIVE, LOCALITY
from benchmarks.paper.job_times import measure_job, phases_table, times_table
from benchmarks.paper.measured import count_cells, run_measured
from benchmarks.paper.scaling import count_roots, draw_scaling, scaling_table
from benchmarks.paper.tables import (
    memory_table,
    parity_table,
    rows_table,
    speed_table,
    summary_table,
    traffic_table,
)
from benchmarks.peers.registry import PEERS

METIS: Final = Side("METIS", "model_centric:pipeline.depth=0")
OWN_BATCHES: Final = Side("+ own batches", "locality:pipeline.depth=0")
PIPELINE: Final = Side("+ pipeline", "locality")
_ABLATION: Final = (METIS, OWN_BATCHES, PIPELINE)
_TRAINER_BATCH: Final = 1000
"""roots a trainer and iteration, of GraphSAGE (appendix A.1)"""
_PRODUCTS: Final = Grid(
    ("products-like",),
    ("sage", "gat"),
    scales={"products-like": 0.1},
    hidden=(64,),
    fanouts=((15, 10, 5),),
    batch_sizes=(_TRAINER_BATCH,),
)
_MAG: Final = Grid(
    ("mag-like",),
    ("rgcn",),
    scales=TYPED_SCALES,
    hidden=(64,),
    fanouts=((15, 25),),
    shared_batch=GLOBAL_BATCH,
)
_SPEED_TABLES: Final = (
    *(summary_table, speed_table, stage_table, traffic_table),
    *(parity_table, rows_table, memory_table),
)
_WIDTHS: Final = (
    "Fanouts are those of appendix A.1; hidden rows have 64 numbers, where the paper's have 256 "
    "(R-GCN: 1,024).",
)
_FIG_6: Final = Experiment(
    name="distdglv2-fig6",
    title="DistDGLv2's way of training against DistDGL",
    published=(
        Published("section 5.1, Figure 6", "DistDGLv2 over DistDGL-GPU", "2 to 3 x"),
        Published("section 5.1, Figure 7", "DistDGLv2 over Euler, GraphSAGE", "18 x"),
    ),
    grid=_PRODUCTS,
    tables=(together_table, *_SPEED_TABLES),
    sides=(LOCALITY, BASE),
    peers=SYSTEMS,
    scores=True,
    comparisons=(
        (LOCALITY.role, BASE.role),
        *((side.role, PEERS[name].role) for name in SYSTEMS for side in (LOCALITY, BASE)),
    ),
    differs=(
        *_WIDTHS,
        "Euler (Figure 7) has no binary that is still maintained, so it is not compared.",
        "DistDGL is that of DGL 1.1.3, and that of 2.1.0 on GraphBolt, which came after the paper; "
        "both train on CPUs.",
        "Nothing is sampled on a GPU, and a server's partition is not divided further.",
    ),
    draw=draw_speed,
    rounds=5,
)
_FIG_10: Final = Experiment(
    name="distdglv2-fig10",
    title="What each of DistDGLv2's techniques contributes",
    published=(
        Published("section 5.5, Figure 10", "all over METIS alone, GraphSAGE", "3 x"),
        Published("section 5.5, Figure 10", "all over METIS alone, GAT, R-GCN", "over 2 x"),
        Published("section 5.5", "two-level partitions alone", "about 1.2 x"),
    ),
    grid=_PRODUCTS,
    tables=_SPEED_TABLES,
    sides=_ABLATION,
    comparisons=(
        *((side.role, METIS.role) for side in (OWN_BATCHES, PIPELINE)),
        (PIPELINE.role, OWN_BATCHES.role),
    ),
    differs=(
        *_WIDTHS,
        "In the paper's baseline trainers draw batches from their own partitions already; here "
        "they draw them from all roots, and own batches are a step of their own.",
        "This experiment leaves out two-level partitions within a server, and sampling on GPUs.",
        "With a pipeline one thread more works ahead on the same processors.",
    ),
    draw=draw_speed,
    rounds=5,
    epochs=5,
)
_EXPERIMENTS: Final = (
    _FIG_6,
    replace(
        _FIG_6,
        name="distdglv2-fig6-typed",
        title="DistDGLv2's way of training against DistDGL, several node types",
        published=(Published("section 5.1, Figure 6", "DistDGLv2 over DistDGL-GPU", "2 to 3 x"),),
        grid=_MAG,
    ),
    Experiment(
        name="distdglv2-fig8",
        title="Numbers of servers, the same batch a rank",
        published=(
            Published("section 5.2, Figure 8", "64 GPUs, papers100M: GraphSAGE, GAT", "20, 36 x"),
            Published("section 5.2, Figure 8", "4 to 8 instances, mag-lsc, R-GCN", "2 x"),
        ),
        grid=replace(_PRODUCTS, servers=(2, 4, 8)),
        tables=(scaling_table, *_SPEED_TABLES),
        sides=(BASE, LOCALITY, COOPERATIVE),
        comparisons=tuple((side.role, BASE.role) for side in (LOCALITY, COOPERATIVE)),
        differs=(
            *_WIDTHS,
            "Every host has the same share of the machine's processors, whatever their number, and "
            "one rank.",
        ),
        draw=draw_scaling,
        # A small share of a processor comes in slices, and an epoch must last several slices.
        iterations=8,
        extra=count_roots,
        shares_cpus=True,
    ),
    Experiment(
        name="distdglv2-fig9",
        title="Convergence of own batches, random batches, and ClusterGCN's",
        published=(
            Published("section 5.3, Figure 9", "ClusterGCN beside DistDGLv2", "slower, less exact"),
        ),
        grid=Grid(
            ("arxiv-like",),
            ("sage",),
            scales={"arxiv-like": 0.05},
            hidden=(64,),
            layers=2,
            servers=(2,),
            batch_sizes=(4096,),
        ),
        tables=(scores_table, clusters_table),
        sides=(LOCALITY, BASE, CLUSTER_GCN),
        differs=(
            "ClusterGCN is an engine and a sampler of this experiment: METIS divides the graph "
            "into many clusters, a batch is some of them, all edges within the batch are read and "
            "the others dropped. It makes about as many updates of an epoch as the others.",
            "The labels of a stand-in are synthetic; --graphs takes the directories of real ones.",
        ),
        words=WORDS,
        runs=RUNS,
        draw=draw_curves("epochs"),
        epochs=30,
        iterations=0,
        carry_out=run_cluster_curves,
        count_runs=count_curves,
    ),
    Experiment(
        name="distdglv2-table2",
        title="Where the time of a training job goes",
        published=(
            Published("Table 2", "papers100M: partitioner, load and save", "12, 23 min"),
            Published("Table 2", "papers100M: load for training, train", "8, 4 min"),
        ),
        grid=Grid(
            ("products-like", "uk-like"),
            ("sage",),
            scales={"products-like": 0.1, "uk-like": 0.05},
            hidden=(64,),
            fanouts=((15, 10, 5),),
            batch_sizes=(_TRAINER_BATCH,),
        ),
        tables=(times_table, phases_table),
        sides=(LOCALITY,),
        differs=(
            *_WIDTHS,
            "Nodes are classified; the paper's second row predicts links (docs/howto/links.md).",
            "METIS runs on one machine here, that of the paper (ParMETIS) on four. Servers and "
            "ranks run on loopback.",
            "Files that were just written are in the machine's memory when they are loaded.",
        ),
        epochs=30,
        timed=False,
        carry_out=run_measured(measure_job),
        count_runs=count_cells,
    ),
    _FIG_10,
    replace(
        _FIG_10,
        name="distdglv2-fig10-typed",
        title="What each of DistDGLv2's techniques contributes, several node types",
        grid=_MAG,
    ),
)

EXPERIMENTS: Final = tuple(
    replace(
        experiment,
        hardware="eight T4 GPUs on each of four to eight servers (section 5)",
        link="100 Gb/s",
    )
    for experiment in _EXPERIMENTS
)
