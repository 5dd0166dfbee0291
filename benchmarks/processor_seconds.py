"""Where an iteration's processor seconds go, beside the least that this machine could take.

usage: python -m benchmarks.processor_seconds --out DIR [--data DIR] [--only CELL,...]
           [--rounds 5] [--iterations 2]

Each cell is a graph on four servers, a model, and the engines that train it. All ranks are threads
of this process, as for `hopper plan`: they run the engines' own code, and read one another's rows
without a network. So what messages take of a processor is in no line, and neither is the pipeline.
A round is some iterations, after one that warms up. Lines are milliseconds of processors of all
ranks, per iteration, by part:

==================  ================================================================================
draw                drawing neighbours, numbering the frontier
lay out             ordering edges for kernels
gather              reading rows of features
learnable rows      reading and updating rows that are learned
products            matrix products, forward and backward
aggregate           kernels along edges, forward and backward
tensor operations   all other operations of torch: activations, dropout, copies, losses
update              the optimiser
exchange            copies of what ranks send each other, and their additions
between             Python, and all else
==================  ================================================================================

``bound`` lines say what the same work takes at the least: floating-point operations over the rate
of a large product, and bytes of rows and edges, each read once, over the rate at which memory is
copied, both with one thread on each core (the cell ``rates``). What needs no time in principle has
no bound. ``all`` is the sum of all parts, or of all bounds. Every other iteration is run without
looking into torch's operations, which slows them down, and ``between`` is what is left of its
seconds.

``links`` is link prediction on amazon_computers, of ``--data`` in the npy layout of
docs/reference/graph-directory.md.
"""

from __future__ import annotations

import os
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from benchmarks.partitioners import open_graph as make_graph
from benchmarks.rounds import Results, make_parser, positive
from cache_server.process import keep_freed_memory
from hopper.config import make_config
from hopper.engines import Request
from hopper.engines.assemble import make_schedule
from hopper.engines.build import make_engine, make_learnable
from hopper.engines.train_step import TrainStep
from hopper.features import PartitionedRows, RemoteRows, open_graph
from hopper.graph import GraphDirectory
from hopper.graph.importers import ImportOptions, RandomSplit, import_graph
from hopper.hetero.divide import divide_graph
from hopper.micrograph.route import GlobalBatch
from hopper.ops.numba_kernels import NumbaKernels
from hopper.rehearsal.world import ThreadCluster, rehearse
from hopper.timing.run_log import RunLog, Stage
from hopper.train.rank import make_deterministic

SERVERS = 4
REST = "between"
PARTS = (
    "draw", "lay out", "gather", "learnable rows", "products", "aggregate", "tensor operations",
    "update", "exchange", REST,
)  # fmt: skip
OF_STAGES: Mapping[Stage, str] = {
    "sample": "draw", "gather": "gather", "sync": "exchange", "migrate": "exchange",
}  # fmt: skip
OF_OPERATIONS = {"lay out": "lay out", "learnable rows": "learnable rows", "update": "update"}
IN_PLACE = {torch.ops.aten.addmm_: torch.ops.aten.addmm}
BOUNDED = ("gather", "products", "aggregate")
PRODUCT_SIZE, COPY_NUMBERS = 2048, 1 << 26
Seconds = defaultdict[str, float]
"""by part"""
ONE_TYPE = ("model_centric", "hop", "zero_hop", "cooperative")
TYPED = ("model_centric", "cooperative", "raf")


class Cell(NamedTuple):
    """A graph, a model, and the engines that train it."""

    name: str
    graph: str
    model: dict[str, Any]
    engines: tuple[str, ...]
    fanouts: tuple[int, ...] = (10, 10, 10)
    batch_size: int = 256


CELLS = (
    Cell("sage-16", "scattered:0.25", {"name": "sage", "hidden": 16}, ONE_TYPE),
    Cell("sage-128", "scattered:0.25", {"name": "sage", "hidden": 128}, ONE_TYPE),
    Cell("gat-128", "scattered:0.25", {"name": "gat", "hidden": 128, "heads": 4}, ONE_TYPE),
    Cell("rgcn-mag", "mag-like:0.05", {"name": "rgcn", "hidden": 64}, TYPED, (25, 20)),
    Cell("rgcn-donor", "donor-like:0.02", {"name": "rgcn", "hidden": 64}, TYPED, (25, 20)),
    Cell("rgat-mag", "mag-like:0.05", {"name": "rgat", "hidden": 64}, TYPED, (25, 20)),
    Cell("hgt-mag", "mag-like:0.05", {"name": "hgt", "hidden": 64}, TYPED, (25, 20)),
    Cell("links", "amazon_computers", {"name": "sage", "hidden": 64}, ONE_TYPE, (10, 10)),
)


class Parts:
    """One rank's processor seconds and bounds by part; time counts for the innermost part."""

    _of_thread = threading.local()

    def __init__(self, rates: Rates) -> None:
        self.seconds, self.bound = Seconds(float), Seconds(float)
        self._rates, self._open, self._since = rates, [REST], 0.0
        Parts._of_thread.own = self

    @classmethod
    def own(cls) -> Parts | None:
        """Return the running thread's parts, if it is a rank."""
        return getattr(cls._of_thread, "own", None)

    @contextmanager
    def measured(self, is_looked_into: bool) -> Iterator[None]:
        """Count the time of a block from nothing, of torch's operations only if looked into."""
        self.seconds, self._since = Seconds(float), time.thread_time()
        with _Operations(self) if is_looked_into else nullcontext():
            yield
        self._turn()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Count the time of a block for a part."""
        self._turn()
        self._open.append(name)
        try:
            yield
        finally:
            self._turn()
            self._open.pop()

    @property
    def is_between(self) -> bool:
        """Whether no part is open."""
        return self._open[-1] == REST

    def moved(self, part: str, nbytes: float) -> None:
        """Count bytes that were read or written."""
        self.bound[part] += nbytes / self._rates.bytes

    def computed(self, operations: float) -> None:
        """Count floating-point operations."""
        self.bound["products"] += operations / self._rates.operations

    def _turn(self) -> None:
        now = time.thread_time()
        self.seconds[self._open[-1]] += now - self._since
        self._since = now


class _Operations(TorchDispatchMode):
    """Counts what torch's operations take, except those that are in a part already."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self._parts = parts

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count it."""
        parts, kwargs = self._parts, kwargs or {}
        if not parts.is_between or func.is_view:
            return func(*args, **kwargs)
        count = flop_registry.get(IN_PLACE.get(func.overloadpacket, func.overloadpacket))
        part = "tensor operations" if count is None else "products"
        if func == torch.ops.aten.index_select.out:
            # Products read rows of files in this way, whose bytes were counted before.
            part = "gather"
        with parts.part(part):
            out = func(*args, **kwargs)
        if count is not None:
            parts.computed(count(*args, **kwargs, out_val=out))
        return out


class _Log(RunLog):
    """Opens parts where an engine begins a stage."""

    @contextmanager
    def stage(self, name: Stage, **fields: Any) -> Iterator[dict[str, Any]]:
        """Open the stage's part, if it has one."""
        part = OF_OPERATIONS.get(fields.get("operation", ""), OF_STAGES.get(name, REST))
        own = Parts.own()
        assert own is not None
        with own.part(part):
            yield fields


class Rates(NamedTuple):
    """What one of this machine's cores does in a second while all of them do it."""

    operations: float
    """floating-point operations of a product of two matrices of 2,048 rows and columns"""
    bytes: float
    """read and written, copying an array that no cache holds"""
    narrow_operations: float
    """floating-point operations of rows of 600 numbers times 600 by 16, in memory"""
    gathered_bytes: float
    """read and written, copying every seventh row of 600 numbers"""


def measure_rates() -> Rates:
    """Measure the machine; the best of five."""
    cores = len(os.sched_getaffinity(0))
    square, tall = torch.randn(PRODUCT_SIZE, PRODUCT_SIZE), torch.randn(COPY_NUMBERS // 600, 600)
    narrow, picked = torch.randn(600, 16), torch.arange(0, len(tall), 7)
    buffers = [torch.ones(len(picked), 600) for _ in range(cores)]
    arrays = [np.ones((2, COPY_NUMBERS), np.float32) for _ in range(cores)]

    def best(work: Callable[[int], object]) -> float:
        seconds = []
        with ThreadPoolExecutor(cores) as threads:
            for _ in range(5):
                begun = time.perf_counter()
                list(threads.map(work, range(cores)))
                seconds.append(time.perf_counter() - begun)
        return min(seconds)

    return Rates(
        2 * PRODUCT_SIZE**3 / best(lambda _: square @ square),
        arrays[0].nbytes / best(lambda core: np.copyto(*arrays[core])),
        2 * tall.numel() * 16 / best(lambda _: tall @ narrow),
        2
        * buffers[0].nbytes
        / best(lambda core: torch.index_select(tall, 0, picked, out=buffers[core])),
    )


def count_kernels_and_reads() -> None:
    """Let kernels along edges and reads of rows count for the rank that calls them."""
    for name in ("gather_sum", "edge_dot", "softmax", "softmax_gradient"):
        kernel = getattr(NumbaKernels, name)
        setattr(NumbaKernels, name, _counted(kernel, "aggregate", _along_edges))
    for name in ("gather_with", "stored_with"):
        read = getattr(PartitionedRows, name)
        setattr(PartitionedRows, name, _counted(read, "gather", _of_rows))


class _FetchingThreads:
    """Adds up the seconds of threads that fetch rows of other servers for ranks."""

    def __init__(self) -> None:
        self.seconds, self._lock, fill = 0.0, threading.Lock(), RemoteRows.fill

        def timed(*args: Any) -> None:
            begun = time.thread_time()
            fill(*args)
            if Parts.own() is None:
                with self._lock:
                    self.seconds += time.thread_time() - begun

        RemoteRows.fill = timed  # type: ignore[method-assign, assignment]


def _counted(
    call: Callable[..., Any], part: str, moved: Callable[..., float]
) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        parts = Parts.own()
        if parts is None or not (parts.is_between or part == "gather"):
            return call(*args, **kwargs)
        with parts.part(part):
            out = call(*args, **kwargs)
        parts.moved(part, moved(out, *args))
        return out

    return run


def _along_edges(out: Any, _kernels: object, edges: Any, rows: Any, *_: object) -> float:
    """Return the bytes of a kernel: what it writes, and an index and a row of each edge."""
    count, rows = edges.indices.numel(), tree_leaves(rows)[0]
    return sum(map(_nbytes, tree_leaves(out))) + count * (8 + rows.nbytes / max(len(rows), 1))


def _of_rows(_out: object, rows: PartitionedRows, *args: Any) -> float:
    """Return the bytes of reading rows: once, since products may read them where they are."""
    if len(args) == 5:
        kind, node_type, ids = args[:3]
    else:
        kind, (node_type, ids) = "features", args[:2]
    columns, dtype = rows.local.row_format(kind, node_type)
    return ids.size * columns * dtype.itemsize


def _nbytes(leaf: Any) -> int:
    return leaf.nbytes if isinstance(leaf, Tensor | np.ndarray) else 0


def train_batch(engine: TrainStep[Any, Any], rows: PartitionedRows, batch: GlobalBatch) -> None:
    """Train a batch without a pipeline, as every rank at once."""
    plan = engine.plan_and_ask(batch)
    with rows.one_operation():
        inputs = engine.read(plan, rows)
    engine.train(plan, inputs)


def measure_engine(
    request: Request, rates: Rates, fetching: _FetchingThreads, rounds: int, iterations: int
) -> tuple[list[Seconds], Seconds]:
    """Train in rounds; return the seconds of each round's mean iteration, and their mean bound."""
    schedule = make_schedule(request)
    iterations = min(iterations, schedule.iterations // 2)
    before = fetching.seconds

    def work(cluster: ThreadCluster, rows: PartitionedRows) -> tuple[list[Seconds], Seconds]:
        parts, turns = Parts(rates), list[Seconds]()
        learnable = make_learnable(request, cluster)
        with closing(make_engine(request, cluster, rows, _Log(), learnable)) as engine:
            for turn in range(rounds + 1):
                looked_into, plain = Seconds(float), Seconds(float)
                if turn == 1:
                    parts.bound.clear()
                for number in range(2 * iterations):
                    is_looked_into = number % 2 == 0
                    with parts.measured(is_looked_into):
                        train_batch(engine, rows, schedule.batch(turn, number))
                    _add(looked_into if is_looked_into else plain, parts.seconds, iterations)
                turns.append(_join(looked_into, plain))
        # Rows and edges are counted in every iteration, operations in those that are looked into.
        for part in BOUNDED:
            parts.bound[part] /= (1 if part == "products" else 2) * iterations * rounds
        return turns[1:], parts.bound

    ranks = rehearse(request, work)
    fetched = (fetching.seconds - before) / (2 * iterations * (rounds + 1))
    turns, bound = [Seconds(float, gather=fetched) for _ in range(rounds)], Seconds(float)
    for of_turns, of_bound in ranks:
        _add(bound, of_bound)
        for turn, seconds in zip(turns, of_turns, strict=True):
            _add(turn, seconds)
    return turns, bound


def _join(looked_into: Seconds, plain: Seconds) -> Seconds:
    """Return the seconds of torch's operations where they were looked into, and of the rest where
    they were not."""
    of_torch = ("gather", "products", "tensor operations")
    seconds = Seconds(float, plain | {part: looked_into[part] for part in of_torch})
    seconds[REST] = 0.0
    seconds[REST] = sum(plain.values()) - sum(seconds.values())
    return seconds


def _add(total: Seconds, seconds: Mapping[str, float], share: float = 1) -> None:
    for part, value in seconds.items():
        total[part] += value / share


def divide(cell: Cell, data: Path | None, work: Path) -> Callable[[str], Path]:
    """Make the cell's graph; return what divides it for an engine."""
    if cell.name == "links":
        assert data is not None
        path, split = work / "links", RandomSplit(0.85, 0.05)
        options = ImportOptions(symmetrize=True, row_normalize=True, targets=("edge",), split=split)
        if not path.exists():
            import_graph("npy", str(data / cell.graph), path, options)
    else:
        path = work / cell.graph
        if not path.exists():
            make_graph(cell.graph, work)

    def divided(engine: str) -> Path:
        method = "meta" if engine == "raf" else "metis"
        parts = path.with_name(f"{path.name}-{method}")
        if not parts.exists():
            layers = len(cell.fanouts) if engine == "raf" else None
            divide_graph(GraphDirectory.open(path), parts, SERVERS, method, layers=layers)
        return parts

    return divided


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--only", type=lambda text: text.split(","), help="cells")
    parser.add_argument("--iterations", type=positive, default=2, help="of a round")
    options = parser.parse_args(arguments)
    make_deterministic()
    keep_freed_memory()
    torch.set_num_threads(1)
    count_kernels_and_reads()
    fetching = _FetchingThreads()
    results, rates = Results("processor-seconds", options.out), measure_rates()
    names = ("GFLOP/s", "GB/s copied", "GFLOP/s, 600 by 16", "GB/s, rows of 2,400 bytes")
    facts = [("a core", name, rate / 1e9) for name, rate in zip(names, rates, strict=True)]
    results.add("rates", {}, facts=facts)
    with tempfile.TemporaryDirectory(dir=options.out) as folder:
        for cell in CELLS:
            if cell.name not in (options.only or [cell.name]) or (
                cell.name == "links" and options.data is None
            ):
                continue
            divided = divide(cell, options.data, Path(folder))
            measured, facts = dict[str, dict[str, Any]](), list[tuple[str, str, float]]()
            for engine in cell.engines:
                values = {
                    "data": {"partitioned": str(divided(engine))},
                    "model": {"layers": len(cell.fanouts), **cell.model},
                    "sampler": {"fanouts": list(cell.fanouts)},
                    "train": {"engine": engine, "batch_size": cell.batch_size, "threads": 1},
                    "hop": {"merge": "off"},
                }
                config = make_config(values)
                request = Request(config, open_graph(config))
                turns, bound = measure_engine(
                    request, rates, fetching, options.rounds, options.iterations
                )
                for seconds in (*turns, bound):
                    seconds["all"] = sum(seconds.values())
                measured[engine] = {
                    f"{part}, ms": np.array([[1e3 * turn[part]] for turn in turns])
                    for part in (*PARTS, "all")
                }
                facts += [(engine, f"{part}, bound, ms", 1e3 * bound[part]) for part in bound]
            results.add(cell.name, measured, facts=facts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
