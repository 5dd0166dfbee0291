"""A whole prediction on one machine, or what it takes to start it on several."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from hopper.config import Config
from hopper.engines import Request
from hopper.errors import RequestError
from hopper.features import open_graph
from hopper.inference import check_output
from hopper.partition import PartitionedGraph
from hopper.partition.checksums import read_division
from hopper.predict.description import begin_description, count_predicted
from hopper.predict.order import WORK_FOLDER, Asked, Order
from hopper.predict.parts import Predictions, check_format
from hopper.predict.trained import TrainedRun
from hopper.scratch import scratch_folder
from hopper.train.launch import (
    ranks_of,
    require_main_thread,
    run_on_this_machine,
    write_config,
)
from hopper.train.run_lock import lock_run_folder, make_run_folder
from hopper.train.verify import verify_data


def predict_into(run: str | os.PathLike[str], out: str | os.PathLike[str], asked: Asked) -> int:
    """Predict with a finished run's model: start servers and ranks here, wait for them, and take
    them down. What an ended prediction into the same folder has done is not done again.

    Parameters
    ----------
    run: the run's folder. out: the folder of the prediction.

    Returns
    -------
    How many nodes, or edges, were predicted.

    Raises
    ------
    ConfigError, RequestError, GraphError: it cannot be done as asked. Nothing was started.
    ServerLost, RankLost, ClusterError: a server or a rank ended early. The text names it.
    """
    require_main_thread("hopper.predict")
    made = _prepare(run, out, asked)
    if made is None:
        shutil.rmtree(Path(out) / WORK_FOLDER, ignore_errors=True)
        return count_predicted(Path(out))
    config, graph = made
    verify_data(config, graph, range(graph.book.servers))
    work = Path(config.train.run_dir)
    with lock_run_folder(work, "launcher"):
        run_on_this_machine(config, graph, work, "hopper.predict")
    shutil.rmtree(work, ignore_errors=True)
    return count_predicted(Path(out))


def predict_once(run: str | os.PathLike[str], asked: Asked) -> Predictions:
    """:func:`predict_into` a folder that is gone when it has been read."""
    with scratch_folder("hopper-predict-") as folder:
        predict_into(run, folder / "out", asked)
        return Predictions.open(folder / "out")


def prepare_prediction(
    run: str | os.PathLike[str], out: str | os.PathLike[str], asked: Asked
) -> Path:
    """Write what the ranks of a prediction read, and start nothing; returns the file that each is
    given: ``torchrun ... -m hopper.predict FILE``.

    Parameters and errors as of :func:`predict_into`; RequestError also where it is finished.
    """
    made = _prepare(run, out, asked)
    if made is None:
        raise RequestError(f"{out}: the prediction is finished")
    config, _ = made
    return write_config(config, Path(config.train.run_dir), list(config.cluster.servers))


def _prepare(
    run: str | os.PathLike[str], out: str | os.PathLike[str], asked: Asked
) -> tuple[Config, PartitionedGraph] | None:
    """The configuration to predict with, and the graph; None where all is done."""
    trained, folder = TrainedRun(Path(run)), Path(out).absolute()
    nodes = asked.nodes
    if nodes.endswith(".npy"):
        nodes = str(Path(nodes).absolute())
    work = folder / WORK_FOLDER
    config = trained.request_config([*asked.overrides, f"--train.run_dir={work}"])
    graph = open_graph(config)
    request = Request(config, graph)
    target = trained.target
    order = Order(
        run=str(Path(run).absolute()),
        model=trained.checksum(),
        what=asked.what,
        nodes=nodes,
        graph=str(graph.path.absolute()),
        division=read_division(graph.path),
        ranks=ranks_of(config, graph),
        device=config.train.device,
        format=asked.format,
        memory=asked.memory,
        node_type=asked.node_type or request.reads.target,
        of_edges=target.predicted == "edge" and asked.what != "embeddings",
        at=asked.at,
    )
    order.check(target, in_time=request.reads_times)
    check_format(order.format)
    trained.check(request)
    check_output(
        trained.load_model(), order.output(target.predicted), by_relation=bool(graph.holdings)
    )
    _ = order.edge_ids(graph) if order.of_edges else order.node_ids(graph)
    if begin_description(folder, order):
        return None
    make_run_folder(work)
    return config, graph
