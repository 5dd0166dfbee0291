"""What is to be predicted, of whom, and how it is written."""

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
"""in a prediction's folder; what begins with ``_`` is no part for readers of Parquet folders"""
WORK_FOLDER: Final = "_work"
ALL: Final = "all"


@dataclass(frozen=True)
class Asked:
    """What a caller asks of a run's model; :class:`Order` says what it means.

    Attributes
    ----------
    overrides: of the run's configuration, such as ``("--data.partitioned", "other")``: another
        graph of the same node types, relations and widths; sections ``data`` and ``cluster``,
        ``train.device`` and ``train.threads``.
    node_type: of whom; empty = the target type.
    at: the time for which, of a run whose draws are in time; None = that of each root.
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
    """A prediction that was asked for.

    Attributes
    ----------
    run: the folder of the run whose model predicts, absolute.
    model: the checksum of its parameters.
    what: class numbers, 0 and 1 for each of several labels, or values, as the graph's labels are
        (``labels``); how probable each is; the numbers that these are made of (``logits``); or what
        the classifier reads of a node (``embeddings``).
    nodes: of whom: "all" nodes of the target type, a split's name, or the absolute path of an .npy
        file of original ids; of a run on labels of edges, which edges.
    graph: the partitioned directory, absolute. division: its fingerprint.
    ranks: how many predict; their numbers are those of the parts. device: where they compute.
    format: of the parts.
    memory: for the rows that one pass reads, as ``parse_size`` takes it.
    node_type: of whom; of edges, either end's may be asked for.
    of_edges: whether edges are predicted, and not nodes or rows of nodes.
    at: the time for which; None = that of each root.
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
        """As :meth:`of_json` takes it."""
        return asdict(self)

    @classmethod
    def of_json(cls, found: dict[str, Any], where: str) -> Order:
        """The order that :meth:`to_json` described.

        Raises
        ------
        GraphError: a field is missing.
        """
        names = [field.name for field in fields(cls)]
        missing = [name for name in names if name not in found]
        if missing:
            raise GraphError(f"{where}: {missing[0]}: missing field")
        return cls(**{name: found[name] for name in names})

    def output(self, predicted: Predicted) -> Output:
        """What is computed for it; edges are told by what a model makes of nodes, so that these are
        their embeddings."""
        return "embeddings" if self.what == "embeddings" and predicted == "node" else "logits"

    def check(self, target: Target, *, in_time: bool) -> None:
        """Refuse what there is not, and what a target does not have.

        Parameters
        ----------
        in_time: whether rows of a node depend on the time of the root.

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
        """[n] or [n, width]: what is written, from rows that the model computed; of several tasks
        one behind the other, as their labels stand.

        Parameters
        ----------
        rows: [n, width], in host memory. kind, labels: of those that it was trained on.
        """
        if kind == "tasks" and self.what not in ("logits", "embeddings"):
            assert labels is not None
            parts = [
                self.finish(rows[:, logits], own.kind, own)
                for own, logits, _ in labels.places().values()
            ]
            columns = [part if part.ndim == 2 else part[:, np.newaxis] for part in parts]
            return np.concatenate(columns, 1, dtype=np.float32)
        if self.what in ("logits", "embeddings"):
            found = rows
        elif kind == "class":
            found = rows.argmax(1) if self.what == "labels" else torch.softmax(rows, 1)
        elif kind == "multi_hot":
            found = (rows > 0).to(torch.uint8) if self.what == "labels" else torch.sigmoid(rows)
        else:
            found = rows[:, 0] if rows.shape[1] == 1 else rows
        return np.ascontiguousarray(found.numpy())

    def node_ids(self, graph: PartitionedGraph) -> NDArray[np.int64]:
        """[n] int64, ascending: the global ids of the nodes that are asked for.

        Raises
        ------
        RequestError: there is no such type, split or file, or it names nodes that there are not.
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
        return np.sort(globals_[self._listed(f"original ids of {target}", globals_.size)])

    def edge_ids(self, graph: PartitionedGraph) -> NDArray[np.int64]:
        """[n] int64, ascending: the ids of the edges that are asked for.

        Raises
        ------
        RequestError: as of :meth:`node_ids`.
        """
        if self.nodes in graph.schema.splits:
            return graph.split(self.nodes)
        # Where labels of edges are predicted, all edges are there.
        count = int(link_offsets(graph.schema)[-1])
        if self.nodes == ALL:
            return np.arange(count)
        if not self.nodes.endswith(".npy"):
            raise RequestError(
                f"--nodes {self.nodes}: expected {ALL}, one of the splits "
                f"{sorted(graph.schema.splits)}, or an .npy file of edge ids"
            )
        return self._listed("edge ids", count)

    def edges(self, graph: PartitionedGraph, known: TargetEdges) -> LinkTable:
        """The edges that are asked for, in order of their ids; every rank has to call it.

        Raises
        ------
        RequestError: as of :meth:`node_ids`.
        ClusterError: a rank was lost, or a deadline passed.
        """
        if self.nodes in graph.schema.splits:
            return LinkTable.of(graph, graph.links(self.nodes))
        table = LinkTable.all_edges(graph, known)
        return table if self.nodes == ALL else table.pick(self.edge_ids(graph))

    def _listed(self, what: str, count: int) -> NDArray[np.int64]:
        """[n] int64, ascending: the ids of a file, in [0, count)."""
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
    """The order of a prediction's folder, and all that the folder says of itself.

    Raises
    ------
    GraphError: the folder holds no prediction.
    """
    file = out / DESCRIPTION_FILE
    found = read_json(file, "no such file; expected the folder of a prediction")
    return Order.of_json(found, str(file)), found
