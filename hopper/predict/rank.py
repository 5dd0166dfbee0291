"""One rank that predicts: ``torchrun ... -m hopper.predict OUT/_work/config.json``."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.cluster import Cluster
from hopper.config import Config
from hopper.config.bounds import parse_size
from hopper.engines import Request
from hopper.engines.assemble import DTYPES
from hopper.engines.build import make_learnable
from hopper.errors import RequestError
from hopper.inference import FileRows, Inference, Pace, Scene, Wanted, make_inference
from hopper.partition.checksums import read_division
from hopper.predict.description import finish_description
from hopper.predict.order import Order, read_order
from hopper.predict.parts import Part, part_file, write_part
from hopper.predict.trained import TrainedRun
from hopper.train.console import RunConsole
from hopper.train.rank import joined
from hopper.train.run_lock import lock_run_folder
from hopper.train.verify import await_row_checks, start_row_check

_NODES_A_BLOCK: Final = 1 << 14
"""of a rank, where nodes can be computed in any number at a time"""


@torch.no_grad()
def predict_rank(config: Config) -> None:
    """Write this rank's part of a prediction; see :func:`hopper.train.rank.run_rank`."""
    out = Path(config.train.run_dir).parent
    order, _ = read_order(out)
    run = TrainedRun(Path(order.run))
    if run.checksum() != order.model:
        raise RequestError(
            f"{run.model_file}: expected the model that the prediction was begun with; it is "
            "another one now"
        )
    with ExitStack() as held, joined(config, run.check) as (request, cluster, rows):
        _check_same(order, request, cluster)
        if cluster.rank == 0:
            held.enter_context(lock_run_folder(Path(config.train.run_dir), "rank-0"))
        check = start_row_check(config, request.graph, cluster)
        if check is not None:
            held.callback(check.stop)
        learnable = make_learnable(request, cluster)
        run.restore_rows(learnable)
        model = run.load_model().to(cluster.device)
        dtype, classes = DTYPES[config.train.dtype], run.target.width
        memory = parse_size(order.memory)
        scene = Scene(request, cluster, rows, dtype, learnable, classes, memory)
        task = _Task(order, out, run, make_inference(scene, model), model)
        count = task.run()
        await_row_checks(check, cluster, RunConsole(cluster.rank == 0, "").say)
        task.conclude(count)
        learnable.close()
        cluster.leave()


def _check_same(order: Order, request: Request, cluster: Cluster) -> None:
    """Refuse to go on with another graph, or another number of ranks.

    Raises
    ------
    RequestError: names what it was begun with.
    """
    division = read_division(request.graph.path)
    if (division, cluster.world) != (order.division, order.ranks):
        raise RequestError(
            f"{request.where}: the prediction was begun by {order.ranks} ranks on division "
            f"{order.division!r}; expected the same, given {cluster.world} ranks on {division!r}"
        )


@dataclass(frozen=True)
class _Task:
    """A rank's part of a prediction."""

    order: Order
    out: Path
    trained: TrainedRun
    inference: Inference
    model: torch.nn.Module

    @property
    def _cluster(self) -> Cluster:
        return self.inference.scene.cluster

    def run(self) -> int:
        """Predict block after block, but those that all ranks have already; returns how many nodes
        there are, over all ranks."""
        cluster, order = self._cluster, self.order
        ids = order.node_ids(self.inference.graph)
        say = RunConsole(cluster.rank == 0, "").say
        size = _NODES_A_BLOCK * cluster.world
        if not self.inference.takes_any_number(self.model):
            size = max(1, ids.size)
        blocks = [ids[first : first + size] for first in range(0, max(1, ids.size), size)]
        there = torch.tensor([int(self._file(number).exists()) for number in range(len(blocks))])
        cluster.all_reduce(there, "control", "finding the blocks to do")
        for number, block in enumerate(blocks):
            if int(there[number]) < cluster.world:
                self._predict(number, block)
                say(f"block {number + 1} of {len(blocks)}: {block.size:,} nodes")
        return ids.size

    def conclude(self, count: int) -> None:
        """Say that all parts are there; every rank has written its own.

        Parameters
        ----------
        count: of nodes, over all ranks.
        """
        cluster = self._cluster
        shutil.rmtree(self._space, ignore_errors=True)
        if cluster.rank == 0:
            finish_description(self.out, self.order, count)
        cluster.arrive("describing the prediction")
        # On another machine, unless the folder is shared.
        if int(os.environ.get("LOCAL_RANK", 0)) == 0 and not read_order(self.out)[1]["finished"]:
            finish_description(self.out, self.order, count)

    def _predict(self, number: int, block: NDArray[np.int64]) -> None:
        pace = Pace(self._cluster, f"computing block {number}")
        space = FileRows(self._space / str(number), pace, self._tell)
        output, node_type = self.order.output(self.trained.target.predicted), self.order.node_type
        wanted = Wanted(f"block {number}", block, output, node_type)
        ids, rows = self.inference.rows(self.model, wanted, space)
        originals = self.inference.graph.original_ids(node_type)[ids]
        part = Part.of(originals)
        kind = self.trained.target.kind

        def pieces() -> Iterator[tuple[slice, NDArray[Any]]]:
            for piece, places in part.pieces():
                yield piece, self.order.finish(_picked(rows, places), kind)
                pace.go_on()

        sample = self.order.finish(rows[:0].cpu(), kind)
        write_part(self._file(number), part, self.order.what, pieces(), sample)
        pace.await_others()
        # Not before all ranks have their parts: one that has none would want these rows.
        shutil.rmtree(self._space / str(number), ignore_errors=True)

    def _tell(self, table: str, done: int, pieces: int) -> None:
        if pieces > 1 and self._cluster.rank == 0:
            print(f"{table}: {done} of {pieces} pieces", flush=True)

    def _file(self, number: int) -> Path:
        return part_file(self.out, self._cluster.rank, number, self.order.format)

    @property
    def _space(self) -> Path:
        return (
            Path(self.inference.scene.request.config.train.run_dir) / f"rank-{self._cluster.rank}"
        )


def _picked(rows: Tensor, places: NDArray[np.int64]) -> Tensor:
    """[n, width], in host memory: some rows."""
    return rows[torch.from_numpy(places).to(rows.device)].cpu()
