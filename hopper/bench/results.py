"""results.json: what an A/B run measured, in the schema of design.md."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hopper.bench.contender import Contender
from hopper.bench.machine import commit, machine, versions
from hopper.bench.parity import EngineParity
from hopper.config import Config
from hopper.partition import PartitionedGraph
from hopper.run_log import STAGES
from hopper.traffic import CAUSES
from hopper.train.results import ROW_KINDS
from hopper.whole_files import write_text

RESULTS_SCHEMA: Final = 1
RESULTS_FILE: Final = "results.json"
_LINE: Final = 100
"""characters; what is longer has a line for each of its entries"""


def run_entry(
    config: Config, contender: Contender, round_index: int, summary: Mapping[str, Any]
) -> dict[str, Any]:
    """One entry of ``runs``, from a run's summary."""
    return {
        "label": contender.label,
        "engine": contender.engine,
        "exact": contender.exact(config),
        "options": contender.options(config),
        "partition": describe_partition(contender.graph(config)),
        "model": config.model.model_dump(),
        "round": round_index,
        "epochs": [_epoch_entry(epoch) for epoch in summary["epochs"]],
        "nic_bytes": _sum_by_server([epoch.get("nic_bytes") for epoch in summary["epochs"]]),
        "peak_rss_mib": summary["peak_rss_mib"],
        "accuracy": {key: summary["accuracy"].get(key) for key in ("val", "test")},
    }


def assemble(
    config: Config,
    graph: PartitionedGraph,
    runs: Sequence[Mapping[str, Any]],
    parity: Sequence[EngineParity],
    reference: str,
) -> dict[str, Any]:
    """The content of results.json.

    Parameters
    ----------
    reference: in words, what gradients and losses were compared with.
    """
    return {
        "schema": RESULTS_SCHEMA,
        "commit": commit(),
        "versions": versions(),
        "machine": machine(),
        "config": _without_places(config),
        "dataset": describe_dataset(graph),
        "partition": describe_partition(graph),
        "runs": [dict(run) for run in runs],
        "parity": {
            "reference": reference,
            "max_relative_gradient_difference": {
                each.engine: each.gradient_difference for each in parity
            },
            "in_float64": {
                each.engine: each.again._asdict() for each in parity if each.again is not None
            },
            "max_relative_loss_difference": {each.engine: each.loss_difference for each in parity},
            "losses_in_float64": {
                each.engine: each.losses_again for each in parity if each.losses_again is not None
            },
            "not_judged": [each.engine for each in parity if not each.judged],
        },
    }


def _without_places(config: Config) -> dict[str, Any]:
    """The configuration, folders by their last name: where they lay says nothing elsewhere."""
    values = config.model_dump()
    values["data"]["partitioned"] = Path(config.data.partitioned).name
    return values


def describe_dataset(graph: PartitionedGraph) -> dict[str, Any]:
    """The graph in numbers."""
    schema = graph.schema
    return {
        "name": schema.name,
        "source": schema.source,
        "node_types": {
            name: {"count": kind.count, "feature_dim": kind.feature_dim,
                   "feature_dtype": kind.feature_dtype}
            for name, kind in schema.node_types.items()
        },
        "relations": {str(relation): kind.count for relation, kind in schema.relations.items()},
        "classes": {str(owner): labels.classes for owner, labels in schema.labels.items()},
        "splits": dict(schema.splits),
    }  # fmt: skip


def describe_partition(graph: PartitionedGraph) -> dict[str, Any]:
    """How the graph is divided; what partition.json does not tell is None."""
    told = graph.description
    locality = told.get("locality") or {}
    return {
        "method": told["method"],
        "servers": graph.book.servers,
        "edge_cut": told.get("edge_cut"),
        "locality": {key: locality.get(key) for key in ("micrograph", "subgraph")},
    }


def write_results(folder: Path, results: Mapping[str, Any]) -> Path:
    """Write results.json, as :func:`format_result` does it."""
    path = folder / RESULTS_FILE
    write_text(path, format_result(results))
    return path


def format_result(result: Mapping[str, Any], digits: int | None = None) -> str:
    """A result as JSON that is short and can be compared line by line.

    Every key has a line, and so has every entry of a list or mapping that is longer than a line
    and holds others, such as the cells of a grid or the runs of an A/B.

    Parameters
    ----------
    digits: significant digits of every float; None = all of them.

    Returns
    -------
    JSON. A number that JSON cannot hold is a word in it: "nan", "inf" or "-inf".
    """
    plain = speakable(result if digits is None else _round_floats(result, digits))
    lines = ",\n".join(f"{json.dumps(key)}: {_by_entry(value)}" for key, value in plain.items())
    return f"{{\n{lines}\n}}\n"


def _by_entry(value: Any) -> str:
    text = _one_line(value)
    if len(text) <= _LINE or not isinstance(value, dict | list):
        return text
    entries = value.values() if isinstance(value, dict) else value
    if not any(each and isinstance(each, dict | list) for each in entries):
        return text
    lines = [_one_line(each) for each in entries]
    if isinstance(value, dict):
        lines = [f"{json.dumps(key)}: {line}" for key, line in zip(value, lines, strict=True)]
    return f"{text[0]}\n" + ",\n".join(lines) + f"\n{text[-1]}"


def _one_line(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def _round_floats(value: Any, digits: int) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{digits}g}")
    if isinstance(value, Mapping):
        return {key: _round_floats(each, digits) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_round_floats(each, digits) for each in value]
    return value


def _epoch_entry(epoch: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "seconds": epoch["seconds"],
        "loss": epoch["loss"],
        "iterations": epoch["iterations"],
        "decisions": epoch["decisions"],
        "bytes": {cause: epoch["bytes"][cause] for cause in CAUSES},
        "rows": {kind: epoch["rows"][kind] for kind in ROW_KINDS},
        "lookups": epoch["lookups"],
        "stage_seconds": {stage: epoch["stage_seconds"][stage] for stage in STAGES},
        "sent_bytes": epoch["sent_bytes"],
        "cpu_seconds": epoch["cpu_seconds"],
    }


def _sum_by_server(epochs: Sequence[Sequence[int] | None]) -> list[int] | None:
    """Bytes per server over a run; None unless every epoch was counted."""
    counted = [epoch for epoch in epochs if epoch is not None]
    if not counted or len(counted) < len(epochs):
        return None
    return [sum(servers) for servers in zip(*counted, strict=True)]


def speakable(value: Any) -> Any:
    """The same with every number that JSON cannot hold as a word: "nan", "inf", "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {key: speakable(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [speakable(each) for each in value]
    return value
