"""One rank of a training run, from configuration to results."""

from __future__ import annotations

import os
import runpy
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numba
import torch
import torch.distributed as dist

from cache_server.process import keep_freed_memory
from hopper.cluster.cluster import Cluster
from hopper.cluster.rank_network import find_way, take_interface
from hopper.cluster.security import check_security, security_of
from hopper.config import Config
from hopper.config.loading import CONFIG_VARIABLE
from hopper.device.array_module import array_module
from hopper.device.choice import choose_device
from hopper.engines import Request, TrainStep, find_engine
from hopper.engines.assemble import DTYPES, make_schedule
from hopper.engines.build import make_engine, make_learnable
from hopper.engines.checks import check_request
from hopper.errors import ConfigError, RankLost, RequestError
from hopper.features import PartitionedRows, RemoteRows, open_graph, own_server
from hopper.inference import Scene, make_inference
from hopper.process.thread_settings import threads_of_a_rank
from hopper.tasks import find_target
from hopper.timing.run_log import RunLog
from hopper.train.checkpoint_files import settle_resume
from hopper.train.console import RunConsole
from hopper.train.evaluate_links import make_evaluator
from hopper.train.loop import Trainer
from hopper.train.observers import Observers, make_observers
from hopper.train.results import spans_file
from hopper.train.run_checks import check_labels, check_training
from hopper.train.run_identity import run_identity
from hopper.train.run_lock import lock_run_folder
from hopper.train.run_metrics import RunMetrics, serve_metrics
from hopper.train.run_result import describe_run
from hopper.train.tuning import is_tuned, settle
from hopper.train.verify import RowCheck, agree_on_division, verify_as_rank
from hopper.train.warm_cache import warm_cache
from hopper.train.warm_start import warm_start


def run_rank(config: Config) -> None:
    """Train as the rank that torchrun's environment names; without torchrun there is one rank.

    After an error the caller must end the process with ``os._exit``: an orderly exit would wait for
    the other ranks, without a deadline, even if one of them hangs.
    """
    if config.train.script:
        run_script(config)
        return
    # The registry binds its port first, so that a port in use ends the run before ranks meet.
    with (
        ExitStack() as exits,
        serve_metrics(config) as metrics,
        join_cluster(config) as (request, cluster, rows),
    ):
        is_first = cluster.rank == 0
        if is_first:
            exits.enter_context(lock_run_folder(Path(config.train.run_dir), "rank-0"))
        check = exits.enter_context(RowCheck(config.data.verify, request.graph.path, cluster))
        console = RunConsole(is_first)
        observers = make_observers(config, console, is_first=is_first)
        exits.enter_context(observers.closing())
        trainer = make_trainer(request, cluster, rows, observers)
        state = trainer.engine.state
        exits.callback(state.log.close)
        metrics.register(RunMetrics(trainer.engine.name, state, trainer.running))

        def finish() -> None:
            check.finish(console.say)
            if is_first:
                # Written last, so that the folder of a finished run, which is refused, keeps its
                # own description.
                describe_run(config, request.graph)

        trainer.run(finish)
        cluster.leave()


def run_script(config: Config) -> None:
    """Run ``train.script`` as this rank.

    Raises
    ------
    ConfigError: there is no such script, or no launcher of Hopper's has started this rank.
    RankLost: another rank has left the script's process group.
    """
    words = shlex.split(config.train.script)
    if CONFIG_VARIABLE not in os.environ:
        raise ConfigError(
            "train.script: hopper train and hopper host start it; expected torchrun to start "
            f"{words[0]} itself, with the configuration's file in {CONFIG_VARIABLE}"
        )
    if not Path(words[0]).is_file():
        raise ConfigError(f"train.script: expected a file, given {words[0]!r}")
    use_threads(config.train.threads, may_fork=True)
    if int(os.environ.get("WORLD_SIZE", 1)) > 1:
        take_interface(find_way(os.environ["MASTER_ADDR"]), insecure=config.cluster.insecure)
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    try:
        runpy.run_path(words[0], run_name="__main__")
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error):
            raise RankLost(
                f"rank {os.environ.get('RANK', 0)}: lost another rank: {error}"
            ) from error
        raise


@contextmanager
def join_cluster(
    config: Config, check: Callable[[Request], None] = check_training
) -> Iterator[tuple[Request, Cluster, PartitionedRows]]:
    """Open the graph, refuse impossible requests, join the cluster, and connect to the feature
    servers; yield the request, the cluster, and the rows that this rank can read."""
    use_threads(config.train.threads)
    make_deterministic()
    keep_freed_memory()
    if not config.train.run_dir:
        raise ConfigError("train.run_dir: name one: ranks cannot agree on one by themselves")
    graph = open_graph(config, own_server(config))
    request = Request(config, graph)
    check(request)
    verify_as_rank(config, graph)
    device = device_of_rank(config)
    limits = config.cluster
    check_security(config)
    cluster = Cluster.join(
        limits.ranks_per_server,
        device,
        limits.timeout_seconds,
        limits.start_timeout_seconds,
        through_host=limits.share_gpus and device.type == "cuda",
        insecure=limits.insecure,
    )
    if cluster.servers != graph.book.servers:
        raise RequestError(
            f"{config.data.partitioned} has {graph.book.servers} partitions; with "
            f"cluster.ranks_per_server = {limits.ranks_per_server} start "
            f"{graph.book.servers * limits.ranks_per_server} ranks, not {cluster.world}"
        )
    agree_on_division(graph, cluster)
    remote = None
    with ExitStack() as exits:
        if graph.book.servers > 1 and graph.layout.reads_remote_rows:
            remote = RemoteRows(
                graph,
                limits.servers,
                limits.timeout_seconds,
                security=security_of(config),
                wire=limits.feature_wire,
            )
            exits.callback(remote.close)
            remote.wait_until_serving(limits.start_timeout_seconds)
        yield request, cluster, PartitionedRows(graph, cluster.server, remote, cluster.traffic)


def device_of_rank(config: Config, local_ranks: int | None = None) -> torch.device:
    """Return the device that a rank trains on; ``local_ranks`` are those on this machine, None = as
    :func:`choose_device` finds them."""
    shares = config.cluster.share_gpus
    device = choose_device(config.train.device, local_ranks, share_gpus=shares)
    if config.sampler.device != "cpu" and device.type == "cpu":
        raise ConfigError(
            "sampler.device: cuda wants a GPU for every rank of this machine, and there are fewer; "
            "expected cpu"
        )
    if config.cache.policy != "none" and config.cache.memory == "device":
        # Fails now if a module is missing, not after an hour of presampling.
        array_module(device.type)
    return device


def make_trainer(
    request: Request,
    cluster: Cluster,
    rows: PartitionedRows,
    observers: Observers | None = None,
) -> Trainer:
    """Assemble the engine, the evaluator and the loop of one rank, which observers follow; None =
    only a console."""
    observers = observers or Observers(RunConsole(cluster.rank == 0))
    request, graph = request.under(settle_resume(request.config, cluster)), request.graph
    run_dir = Path(request.config.train.run_dir)
    check_labels(graph, [rows])
    if is_tuned(request.config):

        def make_candidate(tried: Request) -> TrainStep[Any, Any]:
            find_engine(tried.config).kind.check(tried)
            own_rows = PartitionedRows(graph, cluster.server, rows.servers, cluster.traffic)
            engine = make_engine(tried, cluster, own_rows, RunLog(), make_learnable(tried, cluster))
            warm_cache(engine, lambda _line: None)
            return engine

        request = settle(request, cluster, make_candidate, observers.say)
        check_request(request)
    config, log = request.config, RunLog()
    learnable = make_learnable(request, cluster)
    engine = make_engine(request, cluster, rows, log, learnable)
    if not config.train.resume:
        warm_start(request, (model.packed.module for model in engine.models), learnable)
    warm_cache(engine, observers.say)
    identity = run_identity(config, graph, cluster)
    # The log opens only now, without the sampling that filled the cache.
    log.open(spans_file(run_dir, cluster.rank), append=bool(config.train.resume))
    width, dtype = find_target(config, graph.schema).width, DTYPES[config.train.dtype]
    inference = make_inference(
        Scene(request, cluster, rows, dtype, learnable, width), engine.state.packed.module
    )
    evaluator = make_evaluator(inference, engine.state.trainer.objective)
    return Trainer(engine, make_schedule(request), evaluator, run_dir, identity, observers)


def use_threads(threads: int, *, may_fork: bool = False) -> None:
    """Set the number of CPU threads; 0 = the machine's cores divided by the ranks on it.

    If this process may fork workers, numba starts no threads yet, since workers cannot use them.
    """
    threads = threads_of_a_rank(threads, int(os.environ.get("LOCAL_WORLD_SIZE", 1)))
    at_most = min(threads, numba.config.NUMBA_NUM_THREADS)
    if may_fork:
        numba.config.NUMBA_NUM_THREADS = at_most
    else:
        numba.set_num_threads(at_most)
    # The last, since numba's threads may be those of torch's OpenMP, of which it then takes all.
    torch.set_num_threads(threads)


def make_deterministic() -> None:
    """Let equal configurations give equal bits."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # The same as use_deterministic_algorithms(True), which also imports torch's compiler.
    torch.set_deterministic_debug_mode("error")
    # Filling uninitialised memory costs a pass over it, and nothing here reads such memory.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
