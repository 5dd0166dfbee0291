"""Orders of predictions: of what, for which nodes or edges, and in which format."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopper.config.bounds import parse_size
from hopper.errors import GraphError, RequestError
from hopper.graph.importers.source_files import load_npy
from hopper.graph.json_file import read_json
from hopper.graph.links import link_offsets
from hopper.graph.schema import Labels, Predicted, TargetKind
from hopper.inference.inference import Output
from hopper.partition import PartitionedGraph
from hopper.tasks import LinkTable, Target
from hopper.tasks.target_edges import TargetEdges

What = Literal["labels", "probabilities", "logits", "embeddings"]
Format = Literal["parquet", "npy"]
WHATS: Final = ("labels", "probabilities", "logits", "embeddings")
FORMATS: Final = ("parquet", "npy")
DESCRIPTION_FILE: Final = "_prediction.json"
"""file in a prediction's folder; readers of Parquet folders ignore names that begin with ``_``"""
WORK_FOLDER: Final = "_work"
ALL: Final = "all"


@dataclass(frozen=True)
class PredictionRequest:
    """A caller's request for a prediction. Fields not listed are those of :class:`Order`.

    Attributes
    ----------
    overrides: changes of the run's configuration, such as ``("--data.partitioned", "other")`` for
        another graph with the same node types, relations and widths. Allowed are sections ``data``
        and ``cluster``, ``train.device`` and ``train.threads``.
    node_type: type of the nodes; empty = the target type.
    at: the time to predict for, if the run's draws are in time; None = the time of each root.
    """

    what: What = "labels"
    nodes: str = ALL
    format: Format = "parquet"
    memory: str = "256M"
    overrides: tuple[str, ...] = ()
    node_type: str = ""
    at: int | None = None


@dataclass(frozen=True)
class Order:
    """A complete prediction request, as the folder of the prediction describes it.

    Attributes
    ----------
    run: absolute folder of the run whose model predicts.
    model: checksum of the model's file.
    what: ``labels`` are class numbers, 0 or 1 for each of several labels, or values, in the form of
        the graph's labels. ``probabilities`` are those of the labels. ``logits`` are the model's
        output, and ``embeddings`` what its classifier reads of a node.
    nodes: "all" nodes of the type, a split's name, or the absolute path of an .npy file of original
        ids. If ``of_edges``, the same for edges and their ids.
    graph: absolute partitioned directory.
    division: its fingerprint.
    ranks: number of ranks; each writes parts with its number.
    device: the device of computation.
    format: format of the parts.
    memory: size of the rows that one pass reads, in the form of ``parse_size``.
    node_type: type of the nodes; of edges, the type of either end.
    of_edges: whether edges are predicted, instead of nodes or embeddings.
    at: the time to predict for; None = the time of each root.
    """

    run: str
    model: str
    what: What
    nodes: str
    graph: str
    division: str
    ranks: int
    device: str
    format: Format
    memory: str
    node_type: str = ""
    of_edges: bool = False
    at: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON, for :meth:`of_json`."""
        return asdict(self)

    @classmethod
    def of_json(cls, description: dict[str, Any], where: str) -> Order:
        """Make an order from the result of :meth:`to_json`.

        Parameters
        ----------
        where: name of the file, for errors.

        Raises
        ------
        GraphError: a field is missing.
        """
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in description]
        if missing:
            raise GraphError(f"{where}: {missing[0]}: missing field")
        return cls(**{name: description[name] for name in names})

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
        if not self.nodes.endswith(".npy"):
            if graph.schema.target_relations:
                raise RequestError(
                    f"--nodes {self.nodes}: the graph's splits are of edges; expected {ALL}, or an "
                    ".npy file of original ids"
                )
            if self.nodes not in graph.schema.splits:
                raise RequestError(
                    f"--nodes {self.nodes}: expected {ALL}, one of the splits "
                    f"{sorted(graph.schema.splits)}, or an .npy file of original ids"
                )
            return np.sort(globals_[graph.split(self.nodes)])
        return np.sort(globals_[self._read_ids(f"original ids of {target}", globals_.size)])

    def edge_ids(self, graph: PartitionedGraph) -> NDArray[np.int64]:
        """Return [n] int64, ascending: the ids of the edges to predict.

        Raises
        ------
        RequestError: as :meth:`node_ids`.
        """
        if self.nodes in graph.schema.splits:
            return graph.split(self.nodes)
        # A graph with labels of edges stores all edges of its target relations.
        count = int(link_offsets(graph.schema)[-1])
        if self.nodes == ALL:
            return np.arange(count)
        if not self.nodes.endswith(".npy"):
            raise RequestError(
                f"--nodes {self.nodes}: expected {ALL}, one of the splits "
                f"{sorted(graph.schema.splits)}, or an .npy file of edge ids"
            )
        return self._read_ids("edge ids", count)

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

    def _read_ids(self, what: str, count: int) -> NDArray[np.int64]:
        """Read the file of ids and check that they are distinct and in [0, count).

        Returns [n] int64, ascending.
        """
        ids = load_npy(Path(self.nodes), "nodes")
        where = f"--nodes {self.nodes}"
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


def read_order(out: Path) -> tuple[Order, dict[str, Any]]:
    """Read the order of a prediction's folder, and the whole description in it.

    Raises
    ------
    GraphError: the folder has no prediction.
    """
    file = out / DESCRIPTION_FILE
    description = read_json(file, "no such file; expected the folder of a prediction")
    return Order.of_json(description, str(file)), description
