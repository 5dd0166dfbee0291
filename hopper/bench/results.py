"""results.json, the file of an A/B's measurements."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from hopper.bench.contender import Contender
from hopper.bench.machine import commit, machine, versions
from hopper.bench.parity import EngineParity
from hopper.config import Config
from hopper.files.whole_files import spell_non_finite, write_text
from hopper.partition import PartitionedGraph
from hopper.train.results import split_scores

RESULTS_FILE: Final = "results.json"
_EPOCH_KEYS: Final = (
    "seconds",
    "loss",
    "iterations",
    "bytes",
    "rows",
    "lookups",
    "stage_seconds",
    "sent_bytes",
    "cpu_seconds",
)
_LINE: Final = 100
"""Number of characters. A longer list or mapping has a line for each of its entries."""


def run_entry(
    config: Config, contender: Contender, round_index: int, summary: Mapping[str, Any]
) -> dict[str, Any]:
    """Make an entry of ``runs`` from a run's summary."""
    nic_bytes = [epoch.get("nic_bytes") for epoch in summary["epochs"]]
    return {
        "label": contender.label,
        "engine": contender.engine,
        "exact": contender.exact(config),
        "options": contender.options(config),
        "partition": describe_partition(contender.graph(config)),
        "model": config.model.model_dump(),
        "round": round_index,
        "epochs": [{key: epoch[key] for key in _EPOCH_KEYS} for epoch in summary["epochs"]],
        # By server, over the whole run.
        "nic_bytes": None if None in nic_bytes else [sum(s) for s in zip(*nic_bytes, strict=True)],
        "peak_rss_mib": summary["peak_rss_mib"],
        "scores": split_scores(summary),
    }


def assemble(
    config: Config,
    graph: PartitionedGraph,
    runs: Sequence[Mapping[str, Any]],
    parity: Sequence[EngineParity],
    reference: str,
) -> dict[str, Any]:
    """Assemble the content of results.json.

    ``reference`` says in words what gradients and losses were compared with.
    """
    in_float64 = {side.engine: side.in_float64 for side in parity if side.in_float64 is not None}
    config_values = config.model_dump()
    # Last names of folders do not depend on the machine.
    config_values["data"]["partitioned"] = Path(config.data.partitioned).name
    return {
        "schema": 1,
        "commit": commit(),
        "versions": versions(),
        "machine": machine(),
        "config": config_values,
        "dataset": describe_dataset(graph),
        "partition": describe_partition(graph),
        "runs": list(runs),
        "parity": {
            "reference": reference,
            "max_relative_gradient_difference": {
                side.engine: side.gradient_difference for side in parity
            },
            "in_float64": {
                engine: {"difference": again.gradient_difference, "roots": again.roots}
                for engine, again in in_float64.items()
            },
            "spread": {side.engine: side.spread for side in parity if side.spread is not None},
            "max_relative_loss_difference": {side.engine: side.loss_difference for side in parity},
            "losses_in_float64": {
                engine: again.loss_difference for engine, again in in_float64.items()
            },
            "not_judged": [side.engine for side in parity if not side.judged],
        },
    }


def describe_dataset(graph: PartitionedGraph) -> dict[str, Any]:
    """Describe a graph in numbers."""
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
    """Describe how the graph is divided. Facts that partition.json lacks are None."""
    description = graph.description
    locality = description.get("locality") or {}
    return {
        "method": description["method"],
        "servers": graph.book.servers,
        "edge_cut": description.get("edge_cut"),
        "locality": {key: locality.get(key) for key in ("micrograph", "subgraph")},
    }


def write_results(folder: Path, results: Mapping[str, Any]) -> Path:
    """Write results.json in the form of :func:`format_result`."""
    path = folder / RESULTS_FILE
    write_text(path, format_result(results))
    return path


def format_result(result: Mapping[str, Any], digits: int | None = None) -> str:
    """Format a result as JSON that is short and can be compared line by line.

    Every key has a line. A nested list or mapping that is longer than a line has a line for each
    entry, such as the cells of a grid or the runs of an A/B. Numbers that JSON cannot represent are
    the words "nan", "inf" and "-inf".

    Parameters
    ----------
    digits: significant digits of every float; None = all of them.
    """
    plain = spell_non_finite(result)
    if digits is not None:
        text = json.dumps(plain)
        plain = json.loads(text, parse_float=lambda number: float(f"{float(number):.{digits}g}"))
    lines = [f"{json.dumps(key)}: {_format_entries(value)}" for key, value in plain.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _format_entries(value: Any) -> str:
    text = _format_line(value)
    if len(text) <= _LINE or not isinstance(value, dict | list):
        return text
    entries = value.values() if isinstance(value, dict) else value
    if not any(entry and isinstance(entry, dict | list) for entry in entries):
        return text
    lines = [_format_line(entry) for entry in entries]
    if isinstance(value, dict):
        lines = [f"{json.dumps(key)}: {line}" for key, line in zip(value, lines, strict=True)]
    return f"{text[0]}\n" + ",\n".join(lines) + f"\n{text[-1]}"


def _format_line(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
