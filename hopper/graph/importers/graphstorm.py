"""Turn a configuration of GraphStorm's graph construction into a file of queries.

The fields are those of ``gconstruct-v0.1`` (GraphStorm's documentation, "Single Machine Graph
Construction"). What SQL cannot say stands in the file as a remark.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from hopper.errors import GraphError
from hopper.files.whole_files import write_text
from hopper.graph.importers.query import quote_name, quote_text
from hopper.graph.json_file import parse_json, read_json

_HEAD: Final = """\
# Made of {file} by hopper dataset import graphstorm. Paths are relative to this file's folder.
# What stands behind -- was not translated.
"""
_READERS: Final = {"parquet": "read_parquet", "json": "read_json", "csv": "read_csv"}
_SPLITS: Final = {"train": "train", "valid": "val", "test": "test"}
"""GraphStorm's names of splits, and Hopper's."""
_SHARES: Final = (0.8, 0.1, 0.1)
"""GraphStorm's shares of splits by default."""


@dataclass(frozen=True)
class _Feature:
    feature_col: str | Sequence[str]
    feature_name: str = ""
    transform: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Label:
    task_type: str
    label_col: str = ""
    split_pct: Sequence[float] = _SHARES
    custom_split_filenames: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class _Table:
    format: Mapping[str, Any]
    files: str | Sequence[str]
    features: Sequence[_Feature] = ()
    labels: Sequence[_Label] = ()

    def source(self, where: str) -> str:
        """Return what follows FROM in SQL."""
        kind = str(self.format.get("name", "")).lower()
        if kind not in _READERS:
            known = ", ".join(_READERS)
            raise GraphError(f"{where}: format: expected one of {known}, given {kind!r}")
        files = [self.files] if isinstance(self.files, str) else self.files
        words = ["[" + ", ".join(map(quote_text, files)) + "]"]
        if "separator" in self.format:
            words.append(f"delim={quote_text(str(self.format['separator']))}")
        return f"{_READERS[kind]}({', '.join(words)})"


@dataclass(frozen=True)
class _Nodes(_Table):
    node_type: str = ""
    node_id_col: str = ""


@dataclass(frozen=True)
class _Edges(_Table):
    relation: Sequence[str] = ()
    source_id_col: str = ""
    dest_id_col: str = ""


@dataclass(frozen=True)
class _Construction:
    nodes: Sequence[_Nodes]
    edges: Sequence[_Edges]


def propose_graphstorm(file: Path, out: Path) -> None:
    """Write the file of queries that reads what a configuration of GraphStorm describes.

    Raises
    ------
    GraphError: the configuration cannot be read, or ``out`` is there; names the field.
    """
    if out.exists():
        raise GraphError(f"{out}: expected no such file, found one; remove it, or choose another")
    described = parse_json(TypeAdapter(_Construction), read_json(file), str(file))
    encoders: dict[str, str] = {}
    parts = ["\n[nodes]\n"]
    for node_type, group in groupby(described.nodes, lambda nodes: nodes.node_type):
        blocks = list(group)
        # Further blocks of a type have its rows in the same order.
        ids = [block.node_id_col for block in blocks if block.node_id_col]
        if not ids:
            raise GraphError(f"{file}: nodes: {node_type}: node_id_col: missing field")
        query = node_type, [f"{quote_name(ids[0])} AS id"], blocks, encoders
        parts.append(_query(*query, f"{file}: nodes: {node_type}"))
    parts.append("\n[edges]\n")
    for edges in described.edges:
        ends = [
            f"{quote_name(edges.source_id_col)} AS src",
            f"{quote_name(edges.dest_id_col)} AS dst",
        ]
        name = "/".join(edges.relation)
        parts.append(_query(f'"{name}"', ends, [edges], encoders, f"{file}: edges: {name}"))
    head = "\n[encoders]\n" if encoders else ""
    for name, model in encoders.items():
        options = f"{{model_name_or_path = {json.dumps(model)}}}"
        words = f'encoder = "sentence_transformers:SentenceTransformer", options = {options}'
        head += f'{name} = {{{words}, cache = "texts.sqlite"}}\n'
    write_text(out, _HEAD.format(file=file.name) + head + "".join(parts))


def _query(
    name: str,
    columns: list[str],
    blocks: Sequence[_Table],
    encoders: dict[str, str],
    where: str,
) -> str:
    """Return the query of a type's or relation's tables, whose rows stand side by side."""
    remarks: list[str] = []
    for block in blocks:
        for feature in block.features:
            columns += _features(feature, encoders, remarks)
        columns += _labels(block, columns[0].removesuffix(" AS id"), remarks)
    listed = ",\n       ".join(columns)
    told = "".join(f"       -- {remark}\n" for remark in remarks)
    sources = "\nPOSITIONAL JOIN ".join(block.source(where) for block in blocks)
    return f"{name} = '''\nSELECT {listed}\n{told}FROM {sources}\n'''\n"


def _features(feature: _Feature, encoders: dict[str, str], remarks: list[str]) -> Iterator[str]:
    """Yield the columns of a feature, or tell why it has none."""
    transform, given = dict(feature.transform), feature.feature_col
    for column in [given] if isinstance(given, str) else given:
        name = feature.feature_name or column
        name = name if isinstance(given, str) else f"{name}_{column}"
        sql = _transform(quote_name(column), transform, encoders)
        if sql:
            yield f"{sql} AS {quote_name(name)}"
        else:
            remarks.append(f"{name}: {json.dumps(transform)} of {column}")


def _transform(column: str, transform: Mapping[str, Any], encoders: dict[str, str]) -> str:
    """Return a transformed column in SQL; "" where SQL has no such transformation."""
    match transform:
        case {"name": "max_min_norm"}:
            low, high = (
                _bound(column, transform, name, within)
                for name, within in (("min", "greatest"), ("max", "least"))
            )
            return f"(least(greatest({column}, {low}), {high}) - {low}) / ({high} - {low})"
        case {"name": "standard"}:
            return f"{column} / {transform.get('sum_val', f'sum({column}) OVER ()')}"
        case {"name": "to_categorical", **rest} if "separator" not in rest:
            return f"{column}::VARCHAR"
        case {"name": "bucket_numerical", "range": [low, high], "bucket_cnt": count, **rest} if (
            "slide_window_size" not in rest
        ):
            place = f"floor(({column} - {low}) * {count} / ({high} - {low}))"
            return f"greatest(0, least({place}, {count} - 1))::INT::VARCHAR"
        case {"name": "bert_hf" | "tokenize_hf", "bert_model": str(model), **_rest}:
            known = {of: name for name, of in encoders.items()}
            name = known.get(model, f"embed_{len(encoders) + 1}")
            encoders[name] = model
            return f"{name}({column})"
        case {"truncate_dim": int(width)}:
            return f"{column}[:{width}]"
        case {"name": str(name)} if name not in ("", "noop", "no-op"):
            return ""
    return column


def _bound(column: str, transform: Mapping[str, Any], name: str, within: str) -> str:
    """Return the smallest or largest value of a column, as a transformation bounds it."""
    if f"{name}_val" in transform:
        return str(transform[f"{name}_val"])
    found, bound = f"{name}({column}) OVER ()", transform.get(f"{name}_bound")
    return found if bound is None else f"{within}({found}, {bound})"


def _labels(block: _Table, key: str, remarks: list[str]) -> Iterator[str]:
    """Yield the columns of labels, and the one of splits, which is that of the first label."""
    for place, label in enumerate(block.labels):
        task = f".{label.label_col}" if len(block.labels) > 1 else ""
        if label.task_type in ("classification", "regression"):
            kind = "label" if label.task_type == "classification" else "value"
            yield f"{quote_name(label.label_col)} AS {quote_name(kind + task)}"
        elif label.task_type != "link_prediction":
            remarks.append(f"label {label.label_col}: task_type {label.task_type!r}")
        if place:
            continue
        if isinstance(block, _Edges) and label.custom_split_filenames:
            remarks.append(f"splits: {json.dumps(dict(label.custom_split_filenames))}")
        elif label.custom_split_filenames:
            yield _custom_splits(label.custom_split_filenames, key)
        else:
            train, val, _ = (*label.split_pct, 0, 0)[:3]
            # The same at every import, as a draw by hash is.
            share = "hash(row_number() OVER ()) % 1000000 / 1e6"
            yield (
                f"CASE WHEN {share} < {train} THEN 'train' "
                f"WHEN {share} < {train + val:g} THEN 'val' ELSE 'test' END AS split"
            )


def _custom_splits(files: Mapping[str, Any], key: str) -> str:
    """Return the column of splits that files of ids name: JSON or texts with an id a line, or a
    column of Parquet."""
    cases = []
    for name, split in _SPLITS.items():
        paths = files.get(name) or []
        for path in [paths] if isinstance(paths, str) else paths:
            column = files.get("column") or ["id"]
            column = column if isinstance(column, str) else column[0]
            ids = (
                f"FROM {quote_text(path)} SELECT {quote_name(column)}::VARCHAR"
                if path.endswith(".parquet")
                else f"FROM read_csv({quote_text(path)}, header=false, columns={{'id': 'VARCHAR'}})"
            )
            cases.append(f"WHEN {key}::VARCHAR IN ({ids}) THEN '{split}'")
    return f"CASE {' '.join(cases)} END AS split"
