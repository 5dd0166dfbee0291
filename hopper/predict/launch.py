"""Runs a whole prediction on one machine, or prepares one for several machines."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from hopper.config import Config
from hopper.engines import Request
from hopper.errors import RequestError
from hopper.features import open_graph
from hopper.files.addresses import hide_passwords, path_of, remote_errors
from hopper.files.scratch import scratch_folder
from hopper.files.whole_files import write_text
from hopper.inference import check_output
from hopper.launch.run import require_main_thread, run_on_this_machine, write_config
from hopper.partition import PartitionedGraph
from hopper.partition.checksums import read_division
from hopper.predict.parts import Predictions
from hopper.predict.request import (
    ADDRESS_FILE,
    PredictionRequest,
    begin_description,
    read_description,
    work_folder,
)
from hopper.predict.trained import TrainedRun
from hopper.train.run_lock import lock_run_folder, make_run_folder
from hopper.train.verify import verify_data


@hide_passwords()
def predict_into(
    run: str | os.PathLike[str], out: str | os.PathLike[str], request: PredictionRequest
) -> int:
    """Predict with the model of a finished run, by its folder, on this machine, into ``out``, a
    folder or an address; return the number of nodes or edges.

    This starts servers and ranks, waits for them and stops them. A prediction that was interrupted
    continues from the parts that its folder has. If the request cannot be fulfilled
    (:class:`ConfigError`, :class:`RequestError`, :class:`GraphError`), nothing was started.
    :class:`ServerLost`, :class:`RankLost` and :class:`ClusterError` name who ended early.
    """
    require_main_thread("hopper.predict")
    prepared, work = _prepare(run, out, request), work_folder(path_of(out), Path(run))
    if prepared is not None:
        config, graph = prepared
        verify_data(config, graph, range(graph.book.servers))
        with lock_run_folder(work, "launcher"):
            run_on_this_machine(config, graph, work, "hopper.predict")
    shutil.rmtree(work, ignore_errors=True)
    return int(read_description(path_of(out))[1]["count"])


def predict_once(run: str | os.PathLike[str], request: PredictionRequest) -> Predictions:
    """Predict with :func:`predict_into` into a temporary folder, and return the predictions."""
    with scratch_folder("hopper-predict-") as folder:
        predict_into(run, folder / "out", request)
        return Predictions.open(folder / "out")


@hide_passwords()
def prepare_prediction(
    run: str | os.PathLike[str], out: str | os.PathLike[str], request: PredictionRequest
) -> Path:
    """Write the configuration file of a prediction's ranks, for ``torchrun ... -m hopper.predict
    FILE``, and start nothing; return the file. Arguments and errors are those of
    :func:`predict_into`; a finished prediction is refused too."""
    prepared = _prepare(run, out, request)
    if prepared is None:
        raise RequestError(f"{out}: the prediction is finished")
    config, _ = prepared
    return write_config(config, Path(config.train.run_dir), list(config.cluster.servers))


def _prepare(
    run: str | os.PathLike[str], out: str | os.PathLike[str], prediction: PredictionRequest
) -> tuple[Config, PartitionedGraph] | None:
    """Check a prediction and create its folders; return nothing if the prediction is finished."""
    trained, folder = TrainedRun(Path(run)), path_of(out)
    nodes, work = prediction.nodes, work_folder(folder, Path(run))
    config = trained.request_config([*prediction.overrides, f"--train.run_dir={work}"])
    graph = open_graph(config)
    request = Request(config, graph)
    target = trained.target
    prediction = replace(
        prediction,
        nodes=str(Path(nodes).absolute()) if nodes.endswith(".npy") else nodes,
        node_type=prediction.node_type or request.reads.target,
        run=str(Path(run).absolute()),
        model=trained.checksum(),
        graph=str(graph.path.absolute()),
        division=read_division(graph.path),
        ranks=request.ranks,
        device=config.train.device,
        of_edges=target.predicted == "edge" and prediction.what != "embeddings",
    )
    prediction.check(target, in_time=request.reads_times)
    trained.check(request)
    output = prediction.output(target.predicted)
    check_output(trained.result.load_model(), output, by_relation=bool(graph.partitions))
    _ = prediction.edge_ids(graph) if prediction.of_edges else prediction.node_ids(graph)
    with remote_errors(folder):
        if begin_description(folder, prediction):
            return None
    make_run_folder(work)
    if not isinstance(folder, Path):
        # An address may have a password.
        work.chmod(0o700)
        write_text(work / ADDRESS_FILE, str(folder))
    return config, graph
