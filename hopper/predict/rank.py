"""One rank of a prediction: ``torchrun ... -m hopper.predict OUT/_work/config.json``."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import torch

from hopper.config import Config
from hopper.config.bounds import parse_size
from hopper.engines.assemble import DTYPES
from hopper.engines.build import make_learnable
from hopper.errors import RequestError
from hopper.features.wire_error import measure_wire_error, tell_wire_error
from hopper.inference import Scene, make_inference
from hopper.partition.checksums import read_division
from hopper.partition.stored_forms import describe_rounded_tables
from hopper.predict.description import read_description
from hopper.predict.tasks import EdgeTask, NodeTask
from hopper.predict.trained import TrainedRun
from hopper.train.console import RunConsole
from hopper.train.rank import join_cluster
from hopper.train.run_lock import lock_run_folder
from hopper.train.verify import RowCheck


@torch.no_grad()
def predict_rank(config: Config) -> None:
    """Compute and write this rank's parts of a prediction. A :class:`RequestError` says that the
    model, the graph or the number of ranks differs from the folder's; other errors are those of
    :func:`hopper.train.rank.run_rank`."""
    out = Path(config.train.run_dir).parent
    prediction, _ = read_description(out)
    run = TrainedRun(Path(prediction.run))
    if run.checksum() != prediction.model:
        raise RequestError(
            f"{run.model_file}: expected the model that the prediction was begun with; it is "
            "another one now"
        )
    with ExitStack() as cleanup, join_cluster(config, run.check) as (request, cluster, rows):
        division = read_division(request.graph.path)
        if (division, cluster.world) != (prediction.division, prediction.ranks):
            raise RequestError(
                f"{request.where}: the prediction was begun by {prediction.ranks} ranks on "
                f"division {prediction.division!r}; expected the same, given {cluster.world} ranks "
                f"on {division!r}"
            )
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
        model = run.result.load_model().to(cluster.device)
        dtype, classes = DTYPES[config.train.dtype], run.target.width
        memory, at = parse_size(prediction.memory), prediction.at
        scene = Scene(request, cluster, rows, dtype, learnable, classes, memory, at)
        task_class = EdgeTask if prediction.of_edges else NodeTask
        task = task_class(prediction, out, run, make_inference(scene, model), model)
        count = task.run()
        check.finish(console.say)
        task.conclude(count)
        learnable.close()
        cluster.leave()
