"""The experiments of Heta (its sections, tables and figures), as far as they are built.

The vanilla execution model of its section 2.2 is ``model_centric`` here. Every side trains the same
learnable rows, each of which has one home; Heta has a table of its own in every partition.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any, Final

from benchmarks.paper.cells import Grid
from benchmarks.paper.charts import draw_speed, draw_trend
from benchmarks.paper.experiment import Experiment, Published, Result, Side, Table
from benchmarks.paper.tables import (
    NONE,
    megabytes,
    memory_table,
    number,
    parity_table,
    percent,
    rows_table,
    sides_of,
    speed_table,
    summary_table,
    traffic_table,
)
from hopper.config import Config
from hopper.engines import Request
from hopper.engines.assemble import make_model, make_schedule
from hopper.hetero.cache_plan import POLICIES
from hopper.hetero.meta_partition import divide
from hopper.hetero.metagraph import make_metagraph
from hopper.models.relation_layer import RelationLayer
from hopper.models.relational import HGNN
from hopper.partition import PartitionedGraph

VANILLA: Final = Side("vanilla, METIS", "model_centric")
RANDOM: Final = Side("vanilla, random", "model_centric:partitioned={random}")
LOCAL: Final = Side("vanilla, local batches", "locality")
ZERO: Final = Side("zero-hop, METIS", "zero_hop")
COOPERATIVE: Final = Side("cooperative, METIS", "cooperative")
RAF: Final = Side("RAF", "raf:partitioned={meta}")
SIDES: Final = (VANILLA, RANDOM, ZERO, COOPERATIVE, RAF)
ON_METIS: Final = (VANILLA, ZERO, COOPERATIVE, RAF)
COMPARISONS: Final = (
    *((side.role, VANILLA.role) for side in (ZERO, COOPERATIVE, RAF)),
    *((RAF.role, side.role) for side in (RANDOM, ZERO, COOPERATIVE)),
)
COMPARISONS_ON_METIS: Final = tuple(pair for pair in COMPARISONS if RANDOM.role not in pair)
SCALES: Final = {
    "mag-like": 0.05,
    "donor-like": 0.02,
    "igbhet-like": 0.004,
    "freebase-like": 0.02,
    "mag240m-like": 0.005,
}
MODELS: Final = ("rgcn", "rgat", "hgt")
FANOUTS: Final = (25, 20)
GLOBAL_BATCH: Final = 1024
DIFFERS: Final = (
    "Labels, types and relations are those of stand-ins; the division of nodes and edges among "
    "types is ours where none was published.",
    "Learnable rows have one home here and are fetched by whoever reads them; in the paper each "
    "partition has a table of its own, which is what --learnable.tables=per_server_table trains.",
    "Sides have no cache but where it is said.",
    "DGL draws a rank's batch among the roots of its own partition: that is the side with local "
    "batches, where there is one (it is approximate). All others draw batches from all roots.",
)


def stage_table(result: Result) -> Table:
    """Return the seconds of a rank by stage, in an iteration (Heta, Figure 10)."""
    names = list(next(iter(result["cells"][0]["sides"].values()))["stage_seconds"])
    rows = []
    for cell, role, side in sides_of(result):
        turns = side["iterations"]
        texts = [number(side["stage_seconds"][name] / turns) for name in names]
        totals = [number(side[name] / turns) for name in ("seconds", "busiest_cpu_seconds")]
        rows.append([cell["name"], role, *totals, *texts])
    headings = ("cell", "side", "iteration, s", "processor, s", *names)
    note = (
        "Seconds of an iteration: of the slowest rank, the processor seconds of the busiest one "
        "(all of its threads, its feature server's left out), and by stage, mean over ranks."
    )
    return Table("Where the time goes", headings, rows, note)


def learnable_table(result: Result) -> Table:
    """Return what learnable rows take of an iteration (Heta, Figure 4)."""
    rows = []
    for cell, role, side in sides_of(result):
        spent = side["learnable"]
        if not spent or not any(spent.values()):
            continue
        iteration_seconds = side["seconds"] / side["iterations"]
        parts = [number(spent[name]) for name in ("read", "send", "update")]
        share = percent(sum(spent.values()) / iteration_seconds)
        rows.append([cell["name"], role, number(iteration_seconds), *parts, share])
    headings = ("cell", "side", "iteration, s", "reading, s", "sending gradients, s", "updating, s")
    note = (
        "Iteration: the slowest rank's, of all rounds, as in the other tables. Reading, sending "
        "and updating: mean over ranks, of the first round, waiting for the others included; the "
        "share is that of the three in such an iteration."
    )
    return Table("Learnable rows", (*headings, "share"), rows, note)


def bound_table(result: Result) -> Table:
    """Return the bytes of partials under RAF beside what the layers make it send."""
    rows = []
    for cell, _, side in sides_of(result):
        if not side["label"].startswith("raf"):
            continue
        bound, sent_bytes = cell["extra"]["partial_bound"], side["ranks"] * side["bytes"]["partial"]
        remote = max(1, cell["extra"]["groups"] - 1)
        rows.append(
            [
                cell["name"],
                str(cell["extra"]["groups"]),
                megabytes(sent_bytes / remote),
                megabytes(bound / remote),
                number(sent_bytes / bound) if bound else NONE,
                megabytes(side["ranks"] * side["bytes"]["gradient"]),
                megabytes(side["ranks"] * side["bytes"]["feature"]),
            ]
        )
    headings = (
        *("cell", "groups of servers", "partials per remote group, MB", "bound, MB", "over bound"),
        *("gradients, MB", "learnable rows, MB"),
    )
    note = (
        "Of an iteration, all ranks together. Bound: for every root and remote group one partial "
        "and its gradient in every layer that makes rows of the roots, and, where aggregations "
        "read these, a finished row and its gradient in all of these layers but the last. The "
        "gradients are of parameters that several servers compute with, and of learnable rows."
    )
    return Table("Partial aggregations beside their bound", headings, rows, note)


def cache_table(result: Result) -> Table:
    """Make a table of the hit rates of every side that has a cache, over all types and by type."""
    types = sorted(
        {node_type for _, _, side in sides_of(result) for node_type in side.get("lookups", {})}
    )
    rows = []
    for cell, role, side in sides_of(result):
        lookups = side.get("lookups", {})
        if lookups:
            all_types = [sum(column) for column in zip(*lookups.values(), strict=True)]
            texts = [
                _hit_rate(lookups[node_type]) if node_type in lookups else NONE
                for node_type in types
            ]
            megabytes_sent = megabytes(side["ranks"] * side["bytes"]["feature"])
            rows.append([cell["name"], role, _hit_rate(all_types), *texts, megabytes_sent])
    headings = ("cell", "side", "all", *types, "features, MB")
    note = "Of the rows that were looked for, those found; bytes of an iteration, all ranks."
    return Table("Hit rates", headings, rows, note)


def _hit_rate(lookups: Sequence[int]) -> str:
    hits, misses = lookups
    return percent(hits / (hits + misses)) if hits + misses else NONE


def partial_bound(config: Config, graph: PartitionedGraph) -> dict[str, Any]:
    """Return how many groups of servers hold the same root relations, and the bytes of partials
    that an iteration has to send."""
    schema, train = graph.schema, config.train
    # The sides' graph is divided by node. The figures are about a division by relation.
    request = Request(config, graph)
    tree = request.reads.tree
    assert tree is not None
    shares = divide(make_metagraph(schema), tree, graph.book.servers).shares
    groups = len({share.roots for share in shares})
    model = make_model(request)
    assert isinstance(model, HGNN)
    schedule = make_schedule(request)
    roots = fmean(schedule.batch(0, index).size for index in range(schedule.iterations))
    rows = roots * (groups - 1)
    item = 8 if train.dtype == "float64" else 4
    layers = model.root_layers()
    total = 2 * rows * item * sum(_partial_width(layer) for layer in layers)
    if any(layer.aggregations_read(model.target) for layer in layers):
        total += 2 * rows * item * config.model.hidden * (len(layers) - 1)
    return {"groups": groups, "partial_bound": total}


def _partial_width(layer: RelationLayer) -> int:
    """Return the numbers of a partial: of the joint softmax also a largest logit and a normaliser
    per head, of a mean also how many relations it is of."""
    width = 1
    for size in layer.nothing:
        width *= size
    extra = {"softmax": 2 * layer.nothing[0], "mean": 1}
    return width + extra.get(layer.combination.algebra, 0)


def _list_published(*figures: tuple[str, str, str]) -> tuple[Published, ...]:
    return tuple(Published(*figure) for figure in figures)


SPEED_TABLES: Final = (
    *(summary_table, speed_table, traffic_table, bound_table, stage_table, learnable_table),
    *(parity_table, rows_table, memory_table),
)
_OVERALL: Final = _list_published(
    ("section 8.2, Figures 8 and 9", "Heta over DGL, three models, five graphs", "1.9 to 5.8 x"),
    ("section 8.2", "average over DGL and GraphLearn: R-GCN, R-GAT, HGT", "2.8, 2.6, 2.4 x"),
)


def _cache_sides(label: str) -> tuple[Side, ...]:
    """Return a side without a cache, and with one under every policy."""
    plain = Side("none", label)
    return (plain, *(Side(policy, f"{label}:cache.policy={policy}") for policy in POLICIES))


def _cache_experiment(label: str, name: str, rows: str) -> Experiment:
    engine = label.partition(":")[0]
    return Experiment(
        name=name,
        title=f"Policies of a cache of {rows} under {engine}",
        published=_list_published(
            ("section 8.3, Figure 12", "cache of GPU memory over none, R-GCN", "up to 1.6 x"),
            ("section 8.3", "over a cache by hotness alone: mag240m, Donor", "15 %, 13 %"),
        ),
        grid=replace(
            GRID,
            graphs=("donor-like", "mag240m-like"),
            cache_sizes=("2%", "10%", "30%"),
        ),
        tables=(summary_table, speed_table, cache_table, traffic_table, stage_table, parity_table),
        sides=_cache_sides(label),
        comparisons=(
            *((policy, "none") for policy in POLICIES),
            *(("benefit", policy) for policy in POLICIES if policy != "benefit"),
        ),
        draw=draw_speed,
    )


def _on_disk(experiment: Experiment) -> Experiment:
    """Return the same where learnable rows and their optimiser's state are larger than memory."""
    grid = replace(
        experiment.grid,
        graphs=("freebase-like", "mag240m-like"),
        scales={"freebase-like": 0.2, "mag240m-like": 0.005},
    )
    tables = (summary_table, speed_table, cache_table, learnable_table, stage_table, memory_table)
    return replace(experiment, grid=grid, tables=(*tables, parity_table), host_memory="2000M")


HARDWARE: Final = "eight T4 GPUs on each of two servers (section 8.1)"
LINK: Final = "100 Gb/s"
GRID: Final = Grid(
    graphs=(),
    models=("rgcn",),
    scales=SCALES,
    hidden=(64,),
    fanouts=(FANOUTS,),
    servers=(2,),
    shared_batch=GLOBAL_BATCH,
)
_EXPERIMENTS: Final = (
    Experiment(
        name="heta-section4",
        title="Bytes of a batch: features, or partial aggregations",
        published=_list_published(
            ("section 4", "vanilla, METIS: 66,772 of 289,986 rows fetched", "92.3 MB"),
            ("section 4", "RAF without meta-partitioning (here: cooperative)", "8.0 MB"),
            ("section 5", "RAF with meta-partitioning", "0.5 MB"),
        ),
        grid=replace(GRID, graphs=("mag240m-like",), models=("rgcn", "rgat")),
        tables=(traffic_table, bound_table, rows_table, parity_table),
        sides=(VANILLA, LOCAL, COOPERATIVE, RAF),
        comparisons=((RAF.role, VANILLA.role),),
        rounds=1,
        epochs=2,
    ),
    Experiment(
        name="heta-fig9",
        title="Epoch time on two servers",
        published=_OVERALL,
        grid=replace(
            GRID,
            graphs=tuple(SCALES),
            models=MODELS,
        ),
        tables=SPEED_TABLES,
        sides=SIDES,
        comparisons=COMPARISONS,
        draw=draw_speed,
        rounds=5,
    ),
    Experiment(
        name="heta-fig11",
        title="Hit rates of a cache on the device",
        published=_list_published(
            ("section 8.3", "hit rate of papers on MAG240M, Heta and DGL-Opt", "67 and 11 %"),
        ),
        grid=replace(
            GRID, graphs=("igbhet-like", "mag240m-like"), models=("rgat",), cache_sizes=("30%",)
        ),
        tables=(cache_table, summary_table, speed_table, traffic_table, parity_table),
        sides=tuple(
            Side(side.role, f"{side.label}:cache.policy={policy}:cache.memory=device")
            for side, policy in ((VANILLA, "hotness"), (RAF, "hotness+penalty"))
        ),
        comparisons=((RAF.role, VANILLA.role),),
        rounds=1,
    ),
    Experiment(
        name="heta-hidden",
        title="Hidden widths",
        published=_list_published(
            ("section 8.3", "Heta over DGL-Opt, R-GCN on ogbn-mag, hidden 1024", "1.7 x"),
        ),
        grid=replace(GRID, graphs=("mag-like",), hidden=(64, 256, 1024)),
        tables=SPEED_TABLES,
        sides=ON_METIS,
        comparisons=COMPARISONS_ON_METIS,
        draw=draw_trend("hidden", "hidden width"),
        rounds=5,
    ),
    Experiment(
        name="heta-fig14",
        title="Numbers of servers, the same global batch",
        published=_list_published(
            ("section 8.3, Figure 14", "Heta, R-GAT on Donor, 2, 3, 4 machines", "scales on"),
            ("section 8.3, Figure 14", "DGL-Opt, GraphLearn, 3 to 4 machines", "slower"),
        ),
        grid=replace(GRID, graphs=("donor-like",), models=("rgat",), servers=(2, 3, 4)),
        tables=SPEED_TABLES,
        sides=ON_METIS,
        comparisons=COMPARISONS_ON_METIS,
        draw=draw_speed,
        shares_cpus=True,
    ),
    Experiment(
        name="heta-fig15",
        title="Fanouts and hops",
        published=_list_published(
            ("section 8.3, Figure 15", "Heta over DGL-Opt, R-GCN on IGB-HET", "2.3 to 4.9 x"),
            ("section 8.3", "bytes of Heta as the neighbourhood grows", "constant"),
        ),
        grid=replace(GRID, graphs=("mag-like",), fanouts=((10, 5), (25, 20), (25, 20, 20))),
        tables=SPEED_TABLES,
        sides=ON_METIS,
        comparisons=COMPARISONS_ON_METIS,
        draw=draw_speed,
    ),
    _cache_experiment("model_centric", "heta-fig12", "remote rows"),
    _cache_experiment("hop", "heta-fig12-hop", "remote rows"),
    _cache_experiment("zero_hop", "heta-fig12-zero-hop", "remote rows"),
    _on_disk(
        _cache_experiment(
            f"{RAF.label}:learnable.storage=mmap", "heta-fig12-raf", "learnable rows on disk"
        )
    ),
)

EXPERIMENTS: Final = tuple(
    replace(experiment, differs=DIFFERS, extra=partial_bound, hardware=HARDWARE, link=LINK)
    for experiment in _EXPERIMENTS
)
