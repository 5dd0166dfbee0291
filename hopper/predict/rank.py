"""One rank of a prediction: ``torchrun ... -m hopper.predict OUT/_work/config.json``.

It predicts nodes, or edges from the rows of both ends.
"""

from __future__ import annotations

import copy
import os
import shutil
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.cluster.cluster import Cluster
from hopper.config import Config
from hopper.config.bounds import parse_size
from hopper.engines.assemble import DTYPES
from hopper.engines.build import make_learnable
from hopper.errors import RequestError
from hopper.features.wire_error import measure_wire_error, tell_wire_error
from hopper.files.addresses import AnyPath, remote_errors
from hopper.graph.topology import Ids
from hopper.inference import (
    EndRows,
    Inference,
    RowSpace,
    Scene,
    Wanted,
    blocks_of,
    make_inference,
    parts_of,
    score_block,
    split_rows,
)
from hopper.partition.checksums import read_division
from hopper.partition.stored_forms import describe_rounded_tables
from hopper.predict.parts import CLASSES, LABEL_NAME, write_part
from hopper.predict.request import (
    PredictionRequest,
    columns_of,
    out_of,
    read_description,
    write_description,
)
from hopper.predict.trained import TrainedRun
from hopper.tasks import Decoder, LinkTable, TargetEdges, decoder_of
from hopper.train.console import RunConsole
from hopper.train.rank import join_cluster
from hopper.train.run_lock import lock_run_folder
from hopper.train.verify import RowCheck

_NODES_A_BLOCK: Final = 1 << 14
"""nodes of each rank in a block, if nodes can be computed in blocks"""
_EDGES_A_BLOCK: Final = 1 << 17
"""edges of all ranks together in a block"""
_ROWS_AT_ONCE: Final = 1 << 16


@dataclass(frozen=True)
class PredictionTask(ABC):
    """A rank's work in a prediction, block after block."""

    predicted: ClassVar[str]
    """what is predicted, in words"""
    request: PredictionRequest
    out: AnyPath
    trained: TrainedRun
    inference: Inference
    model: torch.nn.Module

    @property
    def _cluster(self) -> Cluster:
        return self.inference.scene.cluster

    def run(self) -> int:
        """Predict all blocks that not every rank has written yet; return the number of nodes or
        edges over all ranks."""
        blocks = self._blocks()
        with remote_errors(self.out):
            known = {file.name for file in self.out.glob("part-*")}
        mine = [int(self._file(number).name in known) for number in range(len(blocks))]
        written = torch.tensor(mine)
        self._cluster.all_reduce(written, "control", "finding the blocks to do")
        console = RunConsole(self._cluster.rank == 0)
        for number, block in enumerate(blocks):
            if int(written[number]) < self._cluster.world:
                self._predict(number, block)
                size = f"{block.size:,} {self.predicted}"
                console.say(f"block {number + 1} of {len(blocks)}: {size}")
        return sum(block.size for block in blocks)

    @abstractmethod
    def _blocks(self) -> list[Ids]:
        """Return what to predict, in blocks. There is one at least, which may be empty."""

    @abstractmethod
    def _predict(self, number: int, block: Ids) -> None:
        """Predict a block and write this rank's part of it; collective."""

    def conclude(self, count: int) -> None:
        """Write that the prediction, of ``count`` nodes or edges over all ranks, is finished; every
        rank must call it after :meth:`run`."""
        shutil.rmtree(self._folder, ignore_errors=True)
        labels, facts = self.trained.schema.target_labels, dict[str, Any](count=count)
        if self._label_names:
            facts["label_names"] = self._label_names
        if labels is not None and self.request.what != "embeddings" and labels.tasks:
            columns = columns_of(labels, self.request.what, self.trained.label_names)
            facts["tasks"] = [asdict(task) for task in columns]
        if self._cluster.rank == 0:
            write_description(self.out, self.request, finished=True, **facts)
        self._cluster.arrive("describing the prediction")
        # Other machines need their own description, unless the folder is shared.
        is_first_here = int(os.environ.get("LOCAL_RANK", 0)) == 0
        if is_first_here and not read_description(self.out)[1]["finished"]:
            write_description(self.out, self.request, finished=True, **facts)

    @cached_property
    def _label_names(self) -> list[str]:
        is_class = self.request.what == "labels" or self.request.top
        if is_class and self.trained.target.kind == "class":
            return self.trained.label_names.get("", [])
        return []

    def _finish(self, rows: Tensor) -> NDArray[Any]:
        labels = self.trained.schema.target_labels
        return self.request.finish(rows, self.trained.target.kind, labels)

    def _write(
        self,
        number: int,
        ids: Ids,
        pieces: Iterator[tuple[slice, Any]],
        more: Callable[[slice], dict[str, Any]],
    ) -> None:
        """Write this rank's part of a block; ``more`` returns further columns of a slice."""
        top, what = self.request.top, self.request.what
        names = np.array(self._label_names, np.str_)

        def describe(piece: slice, values: NDArray[Any]) -> dict[str, Any]:
            columns, classes = more(piece), values
            if top:
                # Of equally probable classes the smaller one comes first.
                classes = np.argsort(-values, axis=1, kind="stable")[:, :top]
                probabilities = np.take_along_axis(values, classes, 1)
                columns |= {what: probabilities.astype(self.request.dtype), CLASSES: classes}
            return columns | ({LABEL_NAME: names[classes]} if names.size else {})

        write_part(self._file(number), ids, what, pieces, describe)

    def _file(self, number: int) -> AnyPath:
        """Return the file of this rank's part of a block, which exists once it is complete."""
        return self.out / f"part-{number:05d}-{self._cluster.rank:05d}.{self.request.format}"

    @property
    def _folder(self) -> Path:
        run_dir = Path(self.inference.scene.request.config.train.run_dir)
        return run_dir / f"rank-{self._cluster.rank}"

    def _space(self, name: str, operation: str) -> RowSpace:
        """Make the space for rows of an operation's layers, which prints how far it is filled."""

        def print_progress(table: str, done: int, pieces: int) -> None:
            if pieces > 1 and self._cluster.rank == 0:
                print(f"{table}: {done} of {pieces} pieces", flush=True)

        return RowSpace(self._folder / name, print_progress, self._cluster, operation)


class NodeTask(PredictionTask):
    """Predictions or embeddings of nodes."""

    predicted = "nodes"

    def _blocks(self) -> list[Ids]:
        ids = self.request.node_ids(self.inference.graph)
        size = _NODES_A_BLOCK * self._cluster.world
        if self.inference.shares_work(self.model):
            size = max(1, ids.size)
        return [ids[first : first + size] for first in range(0, max(1, ids.size), size)]

    def _predict(self, number: int, block: Ids) -> None:
        graph, node_type = self.inference.graph, self.request.node_type
        output = self.request.output(self.trained.target.predicted)
        wanted = Wanted(f"block {number}", block, output, node_type)
        space = self._space(str(number), f"computing block {number}")
        ids, rows = self.inference.rows(self.model, wanted, space)
        originals = graph.original_ids(node_type)[ids]
        order = np.argsort(originals)

        def pieces() -> Iterator[tuple[slice, NDArray[Any]]]:
            for piece in split_rows(order.size, _ROWS_AT_ONCE):
                places = torch.from_numpy(order[piece]).to(rows.device)
                yield piece, self._finish(rows[places].cpu())
                space.go_on()

        names = graph.names(node_type)

        def more(piece: slice) -> dict[str, Any]:
            return {} if names is None else {"name": names.of(originals[order[piece]])}

        self._write(number, originals[order], pieces(), more)
        space.await_others()
        # A rank that is interrupted before its part is complete needs these rows again.
        shutil.rmtree(self._folder / str(number), ignore_errors=True)


class EdgeTask(PredictionTask):
    """Predictions of edges. The rows of all ends are computed once, by the ranks that own them.
    Then, block by block, each rank receives the rows that it needs, and predicts its part."""

    predicted = "edges"

    def _blocks(self) -> list[Ids]:
        return blocks_of(self._table, _EDGES_A_BLOCK) or [np.empty(0, np.int64)]

    @cached_property
    def _table(self) -> LinkTable:
        graph, placement = self.inference.graph, self.inference.placement
        return self.request.edges(graph, TargetEdges(graph, self._cluster, placement))

    @cached_property
    def _versions(self) -> LinkTable:
        """The edges of ``_table``, with versions of their ends."""
        return self._table.in_versions(self.inference.sampler.versions_at)

    @cached_property
    def _decoder(self) -> Decoder:
        return copy.deepcopy(decoder_of(self.model)).cpu()

    @cached_property
    def _ends(self) -> dict[str, EndRows]:
        """By node type, the rows of the ends of all edges; collective at the first call."""
        rows = {}
        for node_type in self.inference.graph.schema.root_types:
            ids = np.unique(self._versions.ends(node_type))
            wanted = Wanted(f"ends of type {node_type}", ids, node_type=node_type)
            space = self._space(node_type, "computing rows of edges' ends")
            rows[node_type] = self.inference.ends(self.model, wanted, space)
        return rows

    def _predict(self, number: int, block: Ids) -> None:
        table, cluster = self._table, self._cluster
        relation = table.targets[int(table.relations[block[0]]) if block.size else 0]
        operation = f"handing round rows of block {number}"
        rows = score_block(self._decoder, self._versions, block, self._ends, cluster, operation)
        rank_ids = parts_of(block, cluster)[cluster.rank]
        graph = self.inference.graph
        src = graph.original_ids(relation.src)[table.src[rank_ids]]
        dst = graph.original_ids(relation.dst)[table.dst[rank_ids]]

        def more(piece: slice) -> dict[str, Any]:
            columns: dict[str, Any] = {"src": src[piece], "dst": dst[piece]}
            if len(table.targets) > 1:
                columns["relation"] = [str(relation)] * len(src[piece])
            return columns

        pieces = split_rows(rank_ids.size, _ROWS_AT_ONCE)
        finished = ((piece, self._finish(rows[piece])) for piece in pieces)
        self._write(number, table.ids[rank_ids], finished, more)


@torch.no_grad()
def predict_rank(config: Config) -> None:
    """Compute and write this rank's parts of a prediction. A :class:`RequestError` says that the
    model, the graph or the number of ranks differs from the folder's; other errors are those of
    :func:`hopper.train.rank.run_rank`."""
    out = out_of(Path(config.train.run_dir))
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
