"""What a prediction computes, for which nodes or edges, and in which format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.config.bounds import parse_size
from hopper.errors import RequestError
from hopper.graph.importers.source_files import load_npy
from hopper.graph.schema import LabelKind, Labels, Predicted, TargetKind
from hopper.inference import Output
from hopper.partition import PartitionedGraph
from hopper.tasks import LinkTable, Target, TargetEdges

What = Literal["labels", "probabilities", "logits", "embeddings"]
Format = Literal["parquet", "npy"]
WHATS: Final = ("labels", "probabilities", "logits", "embeddings")
FORMATS: Final = ("parquet", "npy")
ALL: Final = "all"


@dataclass(frozen=True)
class PredictionRequest:
    """A request for a prediction. The folder of the prediction describes it.

    Attributes
    ----------
    what: ``labels`` are class numbers, 0 or 1 for each of several labels, or values, in the form of
        the graph's labels. ``probabilities`` are those of the labels. ``logits`` are the model's
        output, and ``embeddings`` what its classifier reads of a node.
    nodes: "all" nodes of the type, a split's name, or the path of an .npy file of original ids. If
        ``of_edges``, the same for edges and their ids.
    format: format of the parts.
    memory: size of the rows that one pass reads, in the form of ``parse_size``.
    overrides: changes of the run's configuration, such as ``("--data.partitioned", "other")`` for
        another graph with the same node types, relations and widths. Allowed are sections ``data``
        and ``cluster``, ``train.device`` and ``train.threads``. The folder does not have them.
    node_type: type of the nodes; of edges, the type of either end; empty = the target type.
    at: the time to predict for, if the run's draws are in time; None = the time of each root.
    run: absolute folder of the run whose model predicts. This and what follows is filled in when
        the prediction begins.
    model: checksum of the model's file.
    graph: absolute partitioned directory.
    division: its fingerprint.
    ranks: number of ranks; each writes parts with its number.
    device: the device of computation.
    of_edges: whether edges are predicted, instead of nodes or embeddings.
    """

    what: What = "labels"
    nodes: str = ALL
    format: Format = "parquet"
    memory: str = "256M"
    overrides: tuple[str, ...] = ()
    node_type: str = ""
    at: int | None = None
    run: str = ""
    model: str = ""
    graph: str = ""
    division: str = ""
    ranks: int = 0
    device: str = ""
    of_edges: bool = False

    def output(self, predicted: Predicted) -> Output:
        """Return what the model must compute for nodes.

        A model that predicts edges makes embeddings of nodes as its logits.
        """
        return "embeddings" if self.what == "embeddings" and predicted == "node" else "logits"

    def check(self, target: Target, *, in_time: bool) -> None:
        """Refuse unknown values, and values that do not fit what the run predicts.

        Parameters
        ----------
        in_time: whether the rows of a node depend on the time of the root.

        Raises
        ------
        RequestError: names the option, what was expected and what was given.
        """
        for option, given, known in (("what", self.what, WHATS), ("format", self.format, FORMATS)):
            if given not in known:
                raise RequestError(
                    f"--{option}: expected one of {', '.join(known)}, given {given!r}"
                )
        parse_size(self.memory, "--memory")
        if target.kind == "link" and self.what != "embeddings":
            raise RequestError(
                f"--what {self.what}: the run predicts links, by what its model makes of nodes; "
                "expected embeddings"
            )
        if self.at is not None and (self.of_edges or not in_time):
            why = "edges have times of their own" if in_time else "the run drew without times"
            raise RequestError(f"--at {self.at}: {why}; expected none")
        if in_time and target.predicted != "node" and not self.of_edges and self.at is None:
            raise RequestError(
                "--at: the run's edges have times, and a node has other rows at other times; "
                "expected the time for which"
            )
        if target.kind == "float" and self.what == "probabilities":
            raise RequestError(
                "--what probabilities: the labels are values, which have none; expected labels, "
                "logits or embeddings"
            )

    def finish(self, rows: Tensor, kind: TargetKind, labels: Labels | None = None) -> NDArray[Any]:
        """Convert rows that the model computed to the values that are written.

        Parameters
        ----------
        rows: [n, width], in host memory.
        kind, labels: kind and description of the labels that the model was trained on.

        Returns
        -------
        [n] or [n, width]. Several tasks have their columns side by side, in the labels' order.
        """
        if kind == "tasks" and self.what not in ("logits", "embeddings"):
            assert labels is not None
            parts = [
                self.finish(rows[:, logits], task.kind, task)
                for task, logits, _ in labels.task_slices().values()
            ]
            columns = [part if part.ndim == 2 else part[:, np.newaxis] for part in parts]
            return np.concatenate(columns, 1, dtype=np.float32)
        if self.what in ("logits", "embeddings"):
            values = rows
        elif kind == "class":
            values = rows.argmax(1) if self.what == "labels" else torch.softmax(rows, 1)
        elif kind == "multi_hot":
            values = (rows > 0).to(torch.uint8) if self.what == "labels" else torch.sigmoid(rows)
        else:
            values = rows[:, 0] if rows.shape[1] == 1 else rows
        return np.ascontiguousarray(values.numpy())

    def node_ids(self, graph: PartitionedGraph) -> NDArray[np.int64]:
        """Return [n] int64, ascending: the global ids of the nodes to predict.

        Raises
        ------
        RequestError: the type, split or file does not exist, or the file names unknown nodes.
        """
        target, known = self.node_type, graph.schema.root_types
        if target not in known:
            raise RequestError(f"--type {target}: expected one of {', '.join(known)}")
        globals_ = graph.global_ids(target)
        if self.nodes == ALL:
            return np.arange(globals_.size)
        if graph.schema.target_relations and not self.nodes.endswith(".npy"):
            raise RequestError(
                f"--nodes {self.nodes}: the graph's splits are of edges; expected {ALL}, or an "
                ".npy file of original ids"
            )
        ids = self._read_ids(graph, "original ids", f"original ids of {target}", globals_.size)
        return np.sort(globals_[ids])

    def edge_ids(self, graph: PartitionedGraph) -> NDArray[np.int64]:
        """Return [n] int64, ascending: the ids of the edges to predict.

        Raises
        ------
        RequestError: as :meth:`node_ids`.
        """
        # A graph with labels of edges stores all edges of its target relations.
        count = graph.schema.target_count
        if self.nodes == ALL:
            return np.arange(count)
        return self._read_ids(graph, "edge ids", "edge ids", count)

    def edges(self, graph: PartitionedGraph, known: TargetEdges) -> LinkTable:
        """Return the edges to predict, in order of their ids. Every rank must call this.

        Raises
        ------
        RequestError: as :meth:`node_ids`.
        ClusterError: a rank was lost, or a deadline passed.
        """
        if self.nodes in graph.schema.splits:
            return LinkTable.of(graph, graph.links(self.nodes))
        table = LinkTable.all_edges(graph, known)
        return table if self.nodes == ALL else table.pick(self.edge_ids(graph))

    def _read_ids(
        self, graph: PartitionedGraph, kind: str, what: str, count: int
    ) -> NDArray[np.int64]:
        """Read the ids of a split or of a file, which have to be distinct and in [0, count).

        Returns [n] int64; those of a file are ascending.
        """
        where = f"--nodes {self.nodes}"
        if self.nodes in graph.schema.splits:
            return graph.split(self.nodes)
        if not self.nodes.endswith(".npy"):
            raise RequestError(
                f"{where}: expected {ALL}, one of the splits {sorted(graph.schema.splits)}, or an "
                f".npy file of {kind}"
            )
        ids = load_npy(Path(self.nodes), "nodes")
        if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
            raise RequestError(
                f"{where}: expected integers of shape [n], given {ids.dtype} of shape "
                f"{list(ids.shape)}"
            )
        if ids.size and not 0 <= ids.min() <= ids.max() < count:
            raise RequestError(
                f"{where}: expected {what} in [0, {count}), given {ids.min()} to {ids.max()}"
            )
        distinct = np.unique(ids).astype(np.int64)
        if distinct.size < ids.size:
            raise RequestError(
                f"{where}: expected distinct ids; {ids.size - distinct.size} of {ids.size} occur "
                "again"
            )
        return distinct


@dataclass(frozen=True)
class TaskColumns:
    """The columns of one task.

    Attributes
    ----------
    kind: kind of its labels.
    first, stop: the range of its columns.
    as_class: whether there is one column, with class numbers.
    label_names: the source's names of the classes by number; empty if it numbered them.
    """

    name: str
    kind: LabelKind
    first: int
    stop: int
    as_class: bool
    label_names: Sequence[str] = ()

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the task's predictions: [n] class numbers or values, or [n, width] of others.

        Parameters
        ----------
        values: [n, columns], the predictions of all tasks.
        """
        columns = values[:, self.first : self.stop]
        if self.as_class:
            return columns[:, 0].astype(np.int64)
        return columns[:, 0] if self.kind == "float" and columns.shape[1] == 1 else columns


def columns_of(
    labels: Labels, what: str, names: Callable[[str], Sequence[str]]
) -> list[TaskColumns]:
    """Return the columns of every task; none unless the labels are of several tasks.

    Parameters
    ----------
    what: what is predicted: labels, probabilities or logits.
    names: returns the names of a task's classes.
    """
    columns, first = [], 0
    for name, task in labels.tasks:
        as_class = what == "labels" and task.kind == "class"
        stop = first + (task.columns if what == "labels" else task.classes)
        columns.append(TaskColumns(name, task.kind, first, stop, as_class, tuple(names(name))))
        first = stop
    return columns
