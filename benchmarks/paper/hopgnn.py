"""The experiments of HopGNN (its sections, tables and figures)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from benchmarks.paper.accuracy import (
    accuracy_table,
    count_trainings,
    draw_accuracies,
    run_accuracies,
)
from benchmarks.paper.cells import Grid
from benchmarks.paper.charts import draw_bars, draw_epochs, draw_speed, draw_stages, draw_trend
from benchmarks.paper.experiment import BY_DIMENSION, Experiment, Side
from benchmarks.paper.gpu import run_on_gpu, utilisation_table
from benchmarks.paper.hopgnn_published import list_published
from benchmarks.paper.locality import (
    count_localities,
    draw_localities,
    locality_table,
    run_localities,
)
from benchmarks.paper.merging import draw_selection, epochs_table, workload, workload_table
from benchmarks.paper.motivation import (
    alpha,
    alpha_table,
    miss_table,
    naive_bytes,
    reductions_table,
    stages_table,
)
from benchmarks.paper.tables import (
    bytes_table,
    memory_table,
    parity_table,
    rows_table,
    speed_table,
    summary_table,
    traffic_table,
)

BASE: Final = Side("model-centric", "model_centric")
LOCALITY: Final = Side("locality", "locality")
P3: Final = Side("P3", f"p3:partitioned={{{BY_DIMENSION}}}")
NAIVE: Final = Side("Naive", "naive")
MG: Final = Side("+MG", "hop:merge=off:pregather=false")
PG: Final = Side("+PG", "hop:merge=off")
ALL: Final = Side("All", "hop:merge={merge}")
ZERO: Final = Side("zero-hop", "zero_hop")
COOPERATIVE: Final = Side("cooperative", "cooperative")

SHALLOW: Final = ("gcn", "sage", "gat")
FIGURE_11_GRAPHS: Final = ("products-like", "uk-like", "in-like")
PRODUCTS: Final = ("products-like",)
SPEED_TABLES: Final = (
    *(summary_table, speed_table, parity_table, rows_table, bytes_table, memory_table),
)


def _over(baseline: Side, *sides: Side) -> tuple[tuple[str, str], ...]:
    return tuple((side.role, baseline.role) for side in sides)


OVERALL: Final = (
    *_over(BASE, NAIVE, P3, MG, PG, ALL, ZERO),
    *_over(P3, ALL, ZERO),
    *_over(NAIVE, ALL),
    *_over(LOCALITY, ALL, ZERO),
    *_over(ALL, ZERO),
)
FULL_BATCH: Final = tuple(
    Side(side.role, f"{side.label}:sampler.kind=full")
    for side in (BASE, Side("NeutronStar", "neutronstar"), PG, ZERO, COOPERATIVE)
)
TREND_SIDES: Final = (BASE, PG, ALL, ZERO)
TREND: Final = _over(BASE, ALL, ZERO)

_HARDWARE: Final = "an A100 GPU on each of four servers (section 7.1)"
_EXPERIMENTS: Final = (
    Experiment(
        name="hopgnn-table1",
        title="Data locality of micrographs and subgraphs",
        published=list_published("table1"),
        grid=Grid(
            ("arxiv-like", "products-like", "it-like"),
            ("sage",),
            scales={"arxiv-like": 1.0, "products-like": 0.1, "it-like": 0.002},
            servers=(2, 4, 8, 16),
            trains=False,
        ),
        tables=(locality_table,),
        differs=(
            "The paper names no fanout for ten layers; here it is 2, and 10 for two layers (at 10, "
            "ten hops reach practically the whole of any graph of this size).",
            "Layer-wise sampling here is placement-invariant: one sample of the whole graph per "
            "hop, shared by all micrographs, of the size at which a node keeps as many in-edges as "
            "with the fanout, were all nodes equally likely. The paper gives no sizes.",
            "IT was divided by BGL's heuristic in the paper, here by Hopper's streaming "
            "partitioner; OGB-Papers has no stand-in.",
        ),
        draw=draw_localities,
        timed=False,
        carry_out=run_localities,
        count_runs=count_localities,
    ),
    Experiment(
        name="hopgnn-bottleneck",
        title="What gathering features costs model-centric training",
        published=list_published("bottleneck"),
        grid=Grid(("arxiv-like", "products-like", "uk-like"), SHALLOW, fanouts=(2, 10)),
        tables=(stages_table, rows_table, bytes_table, parity_table),
        sides=(BASE,),
        draw=draw_stages,
        rounds=1,
    ),
    Experiment(
        name="hopgnn-alpha",
        title="Features fetched in an iteration against the size of the model",
        published=list_published("alpha"),
        grid=Grid(("products-like", "uk-like"), (*SHALLOW, "deepgcn", "film")),
        tables=(alpha_table, rows_table, bytes_table, parity_table),
        sides=(BASE,),
        differs=(
            "Alpha is proportional to the batch until an iteration touches most of the graph, and "
            "to the width of the features. The paper does not tell its batch, and its deepest "
            "model has 112 layers; the deepest here has ten.",
        ),
        draw=draw_bars("alpha (logarithmic)", alpha),
        rounds=1,
        epochs=2,
    ),
    Experiment(
        name="hopgnn-fig7",
        title="Bytes of naive migration",
        published=list_published("fig7"),
        grid=Grid(("arxiv-like", "products-like", "uk-like"), SHALLOW, fanouts=(2, 10)),
        tables=(traffic_table, parity_table),
        sides=(BASE, NAIVE),
        differs=(
            "What a rank computes for a visiting model's first layer waits there for it to come "
            "back; the paper's naive model takes it along.",
        ),
        draw=draw_bars("bytes of Naive over those of model-centric", naive_bytes),
        rounds=1,
        epochs=2,
    ),
    Experiment(
        name="hopgnn-fig11",
        title="Epoch time of three shallow models",
        published=list_published("fig11"),
        grid=Grid(FIGURE_11_GRAPHS, SHALLOW, hidden=(16, 128)),
        tables=SPEED_TABLES,
        sides=(BASE, LOCALITY, NAIVE, P3, MG, PG, ALL, ZERO),
        comparisons=OVERALL,
        draw=draw_speed,
    ),
    Experiment(
        name="hopgnn-fig12",
        title="Epoch time of two deep models",
        published=list_published("fig12"),
        grid=Grid(FIGURE_11_GRAPHS, ("deepgcn", "film"), hidden=(16, 128)),
        tables=SPEED_TABLES,
        sides=(BASE, LOCALITY, NAIVE, P3, MG, PG, ALL, ZERO),
        comparisons=OVERALL,
        differs=(
            "The fanout is 2, one of the two that section 3.1 names: at 10, seven or ten hops "
            "reach practically the whole graph.",
        ),
        draw=draw_speed,
    ),
    Experiment(
        name="hopgnn-fig13",
        title="What each technique contributes",
        published=list_published("fig13"),
        grid=Grid(("products-like", "uk-like"), SHALLOW),
        tables=SPEED_TABLES,
        sides=(BASE, MG, PG, ALL),
        comparisons=(*_over(BASE, MG, PG, ALL), *_over(MG, PG), *_over(PG, ALL)),
        draw=draw_speed,
    ),
    Experiment(
        name="hopgnn-missrate",
        title="Miss rate, rows and requests of remote gathering",
        published=list_published("missrate"),
        grid=Grid(("arxiv-like", *FIGURE_11_GRAPHS), ("sage",)),
        tables=(miss_table, reductions_table, rows_table, bytes_table, parity_table),
        sides=(BASE, MG, PG, ZERO),
        comparisons=_over(BASE, MG, PG, ZERO),
        differs=(
            "Hopper asks all servers at once and for many rows in one request, so a request here "
            "is a visit to the other servers, whatever its number of rows.",
            "Which rows are needed does not depend on the model, only on its number of layers.",
        ),
        draw=draw_speed,
    ),
    Experiment(
        name="hopgnn-fig17",
        title="Adaptive merging, epoch by epoch",
        published=list_published("fig17"),
        grid=Grid(PRODUCTS, ("gat",)),
        tables=(epochs_table, parity_table),
        shows_epochs=True,
        sides=(BASE, PG, Side(ALL.role, "hop:merge=adaptive")),
        draw=draw_epochs,
        epochs=8,
        iterations=25,
    ),
    Experiment(
        name="hopgnn-fig18",
        title="Which time step is merged away",
        published=list_published("fig18"),
        grid=Grid(("in-like", "products-like"), SHALLOW),
        tables=(summary_table, speed_table, workload_table, parity_table),
        sides=(
            Side("random, 1 dissolved", "hop:merge=1:merge_selection=random"),
            Side("fewest, 1 dissolved", "hop:merge=1"),
            Side("random, 2 dissolved", "hop:merge=2:merge_selection=random"),
            Side("fewest, 2 dissolved", "hop:merge=2"),
        ),
        comparisons=(
            ("fewest, 1 dissolved", "random, 1 dissolved"),
            ("fewest, 2 dissolved", "random, 2 dissolved"),
        ),
        differs=(
            "Hosts that share a machine's cores also share what one of them leaves idle: a rank "
            "that waits for models to arrive slows an emulated cluster down less than a real one.",
        ),
        draw=draw_selection,
        extra=workload,
    ),
    Experiment(
        name="hopgnn-large",
        title="A large graph, divided by a streaming heuristic",
        published=list_published("large"),
        grid=Grid(("it-like",), SHALLOW),
        tables=SPEED_TABLES,
        sides=(BASE, P3, PG, ALL, ZERO),
        comparisons=(*TREND, *_over(P3, ALL, ZERO)),
        draw=draw_speed,
    ),
    Experiment(
        name="hopgnn-gpu-util",
        title="How busy the GPU is",
        published=list_published("gpu-util"),
        grid=Grid(("uk-like",), ("gat",)),
        tables=(utilisation_table, speed_table, parity_table),
        sides=(BASE, ALL, ZERO),
        comparisons=TREND,
        words=("--train.device=cuda",),
        rounds=1,
        epochs=8,
        carry_out=run_on_gpu,
    ),
    Experiment(
        name="hopgnn-fig21",
        title="Full batches",
        published=list_published("fig21"),
        grid=Grid(("in-like", "uk-like"), SHALLOW),
        tables=(summary_table, speed_table, traffic_table, parity_table, memory_table),
        sides=FULL_BATCH,
        comparisons=(
            *_over(FULL_BATCH[0], *FULL_BATCH[1:]),
            *_over(FULL_BATCH[1], *FULL_BATCH[2:]),
        ),
        differs=("An epoch is one iteration, of all training nodes on all neighbours.",),
        draw=draw_speed,
        rounds=5,
        epochs=8,
    ),
    Experiment(
        name="hopgnn-fig22a",
        title="Batch sizes",
        published=list_published("fig22a"),
        grid=Grid(PRODUCTS, ("gcn",), batch_sizes=(512, 1024, 2048, 4096, 8192, 16384)),
        tables=SPEED_TABLES,
        sides=TREND_SIDES,
        comparisons=TREND,
        draw=draw_trend("batch_size", "roots a rank and iteration"),
    ),
    Experiment(
        name="hopgnn-fig22b",
        title="Widths of features",
        published=list_published("fig22b"),
        grid=Grid(PRODUCTS, ("gcn",), feature_dims=(64, 128, 256, 512)),
        tables=SPEED_TABLES,
        sides=TREND_SIDES,
        comparisons=TREND,
        differs=("The text names no widths; these are ours.",),
        draw=draw_trend("feature_dim", "feature dimensions"),
    ),
    Experiment(
        name="hopgnn-fig23a",
        title="Fanouts",
        published=list_published("fig23a"),
        grid=Grid(PRODUCTS, ("gcn",), layers=2, fanouts=(5, 10, 20, 40)),
        tables=SPEED_TABLES,
        sides=TREND_SIDES,
        comparisons=TREND,
        differs=(
            "Two layers instead of three: at a fanout of 40 three hops reach the whole stand-in "
            "from any batch.",
        ),
        draw=draw_trend("fanout", "fanout"),
    ),
    Experiment(
        name="hopgnn-fig23b",
        title="Numbers of machines",
        published=list_published("fig23b"),
        grid=Grid(PRODUCTS, ("gcn",), servers=(2, 4, 6, 8)),
        tables=SPEED_TABLES,
        sides=TREND_SIDES,
        comparisons=TREND,
        differs=(
            "A rank's batch stays the same, so the global batch grows with the number of hosts; "
            "every host has the same share of the machine's CPUs, whatever their number.",
        ),
        draw=draw_trend("servers", "servers"),
        shares_cpus=True,
    ),
    Experiment(
        name="hopgnn-table3",
        title="Accuracy of exact engines and of local batches",
        published=list_published("table3"),
        grid=Grid(("arxiv-like",), SHALLOW, scales={"arxiv-like": 0.05}, hidden=(64,)),
        tables=(accuracy_table,),
        sides=(BASE, Side("hop", "hop:merge=1"), ZERO, LOCALITY),
        differs=(
            "The labels of a stand-in are synthetic: its accuracy says nothing of Arxiv's, only "
            "differences between engines do.",
            "Exact engines compute the same gradient but for rounding, which grows over a run in "
            "float32; that is what may be left between them.",
        ),
        draw=draw_accuracies,
        epochs=10,
        timed=False,
        carry_out=run_accuracies,
        count_runs=count_trainings,
    ),
)

EXPERIMENTS: Final = tuple(
    replace(experiment, hardware=_HARDWARE, link="10 Gb/s") for experiment in _EXPERIMENTS
)
