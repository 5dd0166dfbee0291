"""What a prediction computes, for which nodes or edges, and in which format; and the file in its
folder that describes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Literal, get_args

import numpy as np
import torch
import xxhash
from numpy.typing import NDArray
from torch import Tensor

from hopper.config.bounds import parse_size
from hopper.errors import GraphError, RequestError
from hopper.files.addresses import AnyPath, path_of, remote_errors
from hopper.files.whole_files import write_text
from hopper.graph.importers.source_files import load_npy
from hopper.graph.json_file import read_json
from hopper.graph.schema import LabelKind, Labels, Predicted, TargetKind
from hopper.inference import Output
from hopper.partition import PartitionedGraph
from hopper.tasks import LinkTable, Target, TargetEdges

What = Literal["labels", "probabilities", "logits", "embeddings"]
Format = Literal["parquet", "npy"]
Precision = Literal["float32", "float16"]
ALL: Final = "all"
DESCRIPTION_FILE: Final = "_prediction.json"
"""file in a prediction's folder; readers of Parquet folders ignore names that begin with ``_``"""
ADDRESS_FILE: Final = "address"
"""file in the folder of work, with the address that parts are put to, if they are"""
_WORK_FOLDER: Final = "_work"


@dataclass(frozen=True)
class PredictionRequest:
    """A request for a prediction. The folder of the prediction describes it.

    Attributes
    ----------
    what: ``labels`` are class numbers, 0 or 1 for each of several labels, or values, in the form of
        the graph's labels. ``probabilities`` are those of the labels. ``logits`` are the model's
        output, and ``embeddings`` what its classifier reads of a node.
    nodes: "all" nodes of the type, a split's name, or the path of an .npy file of original ids or
        of a .txt file of names. If ``of_edges``, the same for edges and their ids, without names.
    format: format of the parts.
    memory: size of the rows that one pass reads, in the form of ``parse_size``.
    overrides: changes of the run's configuration, such as ``("--data.partitioned", "other")`` for
        another graph with the same node types, relations and widths. Allowed are sections ``data``
        and ``cluster``, ``train.device`` and ``train.threads``. The folder does not have them.
    node_type: type of the nodes; of edges, the type of either end; empty = the target type.
    at: the time to predict for, if the run's draws are in time; None = the time of each root.
    top: of probabilities, only this many largest ones of each node, and their classes; 0 = all.
    dtype: of probabilities, logits and embeddings.
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
    top: int = 0
    dtype: Precision = "float32"
    run: str = ""
    model: str = ""
    graph: str = ""
    division: str = ""
    ranks: int = 0
    device: str = ""
    of_edges: bool = False

    def output(self, predicted: Predicted) -> Output:
        """Return what the model must compute for nodes: what a model that predicts edges makes of
        them are embeddings."""
        return "embeddings" if self.what == "embeddings" and predicted == "node" else "logits"

    def check(self, target: Target, *, in_time: bool) -> None:
        """Refuse (:class:`RequestError`) unknown values, and values that do not fit what the run
        predicts. ``in_time`` says whether the rows of a node depend on the time of the root."""
        for option, given, known in (
            ("what", self.what, get_args(What)),
            ("format", self.format, get_args(Format)),
            ("dtype", self.dtype, get_args(Precision)),
        ):
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
        if self.dtype != "float32" and self.what == "labels":
            raise RequestError(
                f"--dtype {self.dtype}: labels have no fractions; expected --what probabilities, "
                "logits or embeddings"
            )
        if not self.top:
            return
        if (self.what, self.format, target.kind) != ("probabilities", "parquet", "class"):
            raise RequestError(
                f"--top {self.top}: expected probabilities of classes in parquet, given "
                f"{self.what} in {self.format} of a target of kind {target.kind}"
            )
        if not 0 < self.top <= target.width:
            raise RequestError(
                f"--top {self.top}: expected 1 to {target.width}, the number of classes"
            )

    def finish(self, rows: Tensor, kind: TargetKind, labels: Labels | None = None) -> NDArray[Any]:
        """Convert rows [n, width] that the model computed, in host memory, to the values that are
        written: [n] or [n, width]. Several tasks have their columns side by side, in the order of
        the labels that the model was trained on."""
        if kind == "tasks" and self.what not in ("logits", "embeddings"):
            assert labels is not None
            parts = [
                self.finish(rows[:, logits], task.kind, task)
                for task, logits, _ in labels.task_slices().values()
            ]
            columns = [part if part.ndim == 2 else part[:, np.newaxis] for part in parts]
            return np.concatenate(columns, 1, dtype=self.dtype)
        if self.what in ("logits", "embeddings"):
            values = rows
        elif kind == "class":
            values = rows.argmax(1) if self.what == "labels" else torch.softmax(rows, 1)
        elif kind == "multi_hot":
            values = (rows > 0).to(torch.uint8) if self.what == "labels" else torch.sigmoid(rows)
        else:
            values = rows[:, 0] if rows.shape[1] == 1 else rows
        found = np.ascontiguousarray(values.numpy())
        # The most probable classes are those before rounding.
        if self.dtype == "float32" or self.top:
            return found
        with np.errstate(over="ignore"):
            rounded = found.astype(self.dtype)
        if not np.array_equal(np.isfinite(rounded), np.isfinite(found)):
            raise RequestError(
                f"--dtype {self.dtype}: a value is {np.abs(found).max():g}, which it cannot hold; "
                "expected float32"
            )
        return rounded

    def node_ids(self, graph: PartitionedGraph) -> NDArray[np.int64]:
        """Return [n] int64, ascending: the global ids of the nodes to predict. A
        :class:`RequestError` says that the type, split or file does not exist, or that the file
        names unknown nodes."""
        target, known = self.node_type, graph.schema.root_types
        if target not in known:
            raise RequestError(f"--type {target}: expected one of {', '.join(known)}")
        globals_ = graph.global_ids(target)
        if self.nodes == ALL:
            return np.arange(globals_.size)
        if self.nodes.endswith(".txt"):
            return np.sort(globals_[self._read_names(graph)])
        if graph.schema.target_relations and not self.nodes.endswith(".npy"):
            raise RequestError(
                f"--nodes {self.nodes}: the graph's splits are of edges; expected {ALL}, an .npy "
                "file of original ids, or a .txt file of names"
            )
        ids = self._read_ids(graph, f"original ids of {target}", globals_.size)
        return np.sort(globals_[ids])

    def _read_names(self, graph: PartitionedGraph) -> NDArray[np.int64]:
        """Return the original ids of the nodes that a file names, a name a line."""
        where, known = f"--nodes {self.nodes}", graph.names(self.node_type)
        if known is None:
            raise RequestError(
                f"{where}: the source did not name nodes of {self.node_type}; expected an .npy "
                "file of original ids"
            )
        wanted = Path(self.nodes).read_text("utf-8").splitlines()
        ids = known.find(wanted)
        unknown = np.flatnonzero(ids < 0)
        if unknown.size:
            raise RequestError(
                f"{where}: expected names of nodes of {self.node_type}, given "
                f"{wanted[unknown[0]]!r} ({unknown.size} of {len(wanted)} are unknown)"
            )
        return np.unique(ids)

    def edge_ids(self, graph: PartitionedGraph) -> NDArray[np.int64]:
        """Return [n] int64, ascending: the ids of the edges to predict; errors are those of
        :meth:`node_ids`."""
        # A graph with labels of edges stores all edges of its target relations.
        return self._read_ids(graph, "edge ids", graph.schema.target_count)

    def edges(self, graph: PartitionedGraph, known: TargetEdges) -> LinkTable:
        """Return the edges to predict, in order of their ids; errors are those of
        :meth:`node_ids`. Every rank must call it."""
        if self.nodes in graph.schema.splits:
            return LinkTable.of(graph, graph.links(self.nodes))
        table = LinkTable.all_edges(graph, known)
        return table if self.nodes == ALL else table.pick(self.edge_ids(graph))

    def _read_ids(self, graph: PartitionedGraph, what: str, count: int) -> NDArray[np.int64]:
        """Read distinct ids in [0, count) of a split or of a file, which are then sorted."""
        where = f"--nodes {self.nodes}"
        if self.nodes == ALL:
            return np.arange(count)
        if self.nodes in graph.schema.splits:
            return graph.split(self.nodes)
        if not self.nodes.endswith(".npy"):
            raise RequestError(
                f"{where}: expected {ALL}, one of the splits {sorted(graph.schema.splits)}, an "
                f".npy file of {what}, or a .txt file of names of nodes"
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
    """The columns of one of several tasks: from ``first`` up to ``stop``, or one column with class
    numbers if ``as_class``. ``label_names`` are the source's names of the classes by number, empty
    if it numbered them."""

    name: str
    kind: LabelKind
    first: int
    stop: int
    as_class: bool
    label_names: Sequence[str] = ()

    def of(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the task's predictions, [n] class numbers or values, or [n, width] of others, from
        those of all tasks, [n, columns]."""
        columns = values[:, self.first : self.stop]
        if self.as_class:
            return columns[:, 0].astype(np.int64)
        return columns[:, 0] if self.kind == "float" and columns.shape[1] == 1 else columns


def columns_of(labels: Labels, what: What, names: Mapping[str, Sequence[str]]) -> list[TaskColumns]:
    """Return the columns of every task, if the labels are of several; ``names`` are those of the
    tasks' classes."""
    columns = []
    for name, (task, logits, stored) in labels.task_slices().items():
        place = stored if what == "labels" else logits
        as_class = what == "labels" and task.kind == "class"
        class_names = tuple(names.get(name, ()))
        columns.append(TaskColumns(name, task.kind, place.start, place.stop, as_class, class_names))
    return columns


_FIELDS: Final = [of.name for of in fields(PredictionRequest) if of.name != "overrides"]


def work_folder(out: AnyPath, run: Path) -> Path:
    """Return the folder on this machine for a prediction's work, below the prediction's own, or
    below the run's if the prediction goes to an address."""
    if isinstance(out, Path):
        return out / _WORK_FOLDER
    return run.absolute() / "predictions" / xxhash.xxh64_hexdigest(str(out).encode())


def out_of(work: Path) -> AnyPath:
    """Return where the prediction of a :func:`work_folder` goes. A :class:`RequestError` says that
    the folder was copied without the address."""
    file = work / ADDRESS_FILE
    if work.name != _WORK_FOLDER and not file.exists():
        raise RequestError(f"{file}: missing file: it says where the prediction goes; copy it too")
    return path_of(file.read_text()) if file.exists() else work.parent


def read_description(out: AnyPath) -> tuple[PredictionRequest, dict[str, Any]]:
    """Read the request of a prediction's folder, and the whole description in it. A
    :class:`GraphError` says that the folder has none, or that it lacks a field."""
    file = out / DESCRIPTION_FILE
    with remote_errors(out):
        description = read_json(file, "no such file; expected the folder of a prediction")
    for name in _FIELDS:
        if name not in description:
            raise GraphError(f"{file}: {name}: missing field")
    return PredictionRequest(**{name: description[name] for name in _FIELDS}), description


def begin_description(out: AnyPath, request: PredictionRequest) -> bool:
    """Create the folder of a prediction, or check that it has this one already; return whether the
    prediction is finished. A :class:`RequestError` says that the folder has another prediction or
    other content, or cannot be created."""
    if (out / DESCRIPTION_FILE).exists():
        _, description = read_description(out)
        for name in _FIELDS:
            given = getattr(request, name)
            if description[name] != given:
                raise RequestError(
                    f"{out}: holds a prediction with {name} {description[name]!r}; expected "
                    f"another folder, or the same prediction; given {given!r}"
                )
        return bool(description.get("finished"))
    try:
        # Otherwise a wrong name would become a bucket.
        out.mkdir(parents=isinstance(out, Path), exist_ok=True)
        # A prediction that was interrupted early may have left an unfinished description only.
        names = [content.name for content in out.iterdir()] if out.exists() else []
        is_empty = all(name.startswith(DESCRIPTION_FILE) for name in names)
    except OSError as error:
        if not isinstance(out, Path):
            raise
        raise RequestError(f"--out: {out}: cannot be made: {error.strerror}") from error
    if not is_empty:
        raise RequestError(f"--out: {out}: expected a new or an empty folder; it has content")
    write_description(out, request, finished=False)
    return False


def write_description(out: AnyPath, request: PredictionRequest, **more: Any) -> None:
    """Write a prediction's request, and whatever else its description says."""
    description = {name: value for name, value in asdict(request).items() if name in _FIELDS}
    write_text(out / DESCRIPTION_FILE, json.dumps(description | more, indent=1))
