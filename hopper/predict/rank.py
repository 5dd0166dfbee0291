"""One rank of a prediction: ``torchrun ... -m hopper.predict OUT/_work/config.json``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch

from hopper.cluster.cluster import Cluster
from hopper.config import Config
from hopper.config.bounds import parse_size
from hopper.engines import Request
from hopper.engines.assemble import DTYPES
from hopper.engines.build import make_learnable
from hopper.errors import RequestError
from hopper.features.wire_error import measure_wire_error, tell_wire_error
from hopper.inference import Scene, make_inference
from hopper.partition.checksums import read_division
from hopper.partition.stored_forms import describe_rounded_tables
from hopper.predict.order import Order, read_order
from hopper.predict.tasks import EdgeTask, NodeTask
from hopper.predict.trained import TrainedRun
from hopper.train.console import RunConsole
from hopper.train.rank import join_cluster
from hopper.train.run_lock import lock_run_folder
from hopper.train.verify import RowCheck


@torch.no_grad()
def predict_rank(config: Config) -> None:
    """Compute and write this rank's parts of a prediction.

    Raises
    ------
    RequestError: the model, the graph or the number of ranks differs from the folder's.
    Others as :func:`hopper.train.rank.run_rank`.
    """
    out = Path(config.train.run_dir).parent
    order, _ = read_order(out)
    run = TrainedRun(Path(order.run))
    if run.checksum() != order.model:
        raise RequestError(
            f"{run.model_file}: expected the model that the prediction was begun with; it is "
            "another one now"
        )
    with ExitStack() as cleanup, join_cluster(config, run.check) as (request, cluster, rows):
        _check_same(order, request, cluster)
        if cluster.rank == 0:
            cleanup.enter_context(lock_run_folder(Path(config.train.run_dir), "rank-0"))
        console = RunConsole(cluster.rank == 0)
        wire = config.cluster.feature_wire
        of_wire = tell_wire_error(measure_wire_error(rows, cluster, wire), wire)
        for line in [*describe_rounded_tables(request.schema), *of_wire]:
            console.say(line)
        check = RowCheck(config.data.verify, request.graph.path, cluster)
        cleanup.enter_context(check)
        learnable = make_learnable(request, cluster)
        run.restore_rows(learnable)
        model = run.load_model().to(cluster.device)
        dtype, classes = DTYPES[config.train.dtype], run.target.width
        memory = parse_size(order.memory)
        scene = Scene(request, cluster, rows, dtype, learnable, classes, memory, order.at)
        task_class = EdgeTask if order.of_edges else NodeTask
        task = task_class(order, out, run, make_inference(scene, model), model)
        count = task.run()
        check.finish(console.say)
        task.conclude(count)
        learnable.close()
        cluster.leave()


def _check_same(order: Order, request: Request, cluster: Cluster) -> None:
    """Check that graph and number of ranks are those that the prediction was begun with.

    Raises
    ------
    RequestError: they are not; names both.
    """
    division = read_division(request.graph.path)
    if (division, cluster.world) != (order.division, order.ranks):
        raise RequestError(
            f"{request.where}: the prediction was begun by {order.ranks} ranks on division "
            f"{order.division!r}; expected the same, given {cluster.world} ranks on {division!r}"
        )
