"""Turn a configuration of GraphStorm's graph construction into a file of queries.

The fields are those of ``gconstruct-v0.1`` (GraphStorm's documentation, "Single Machine Graph
Construction"). What SQL cannot say stands in the file as a remark.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter

from hopper.errors import GraphError
from hopper.files.whole_files import write_text
from hopper.graph.importers.query import quote_name, quote_text, toml_text
from hopper.graph.json_file import parse_json, read_json

_HEAD: Final = """\
# Made of {file} by hopper dataset import graphstorm. Paths are relative to this file's folder.
# What stands behind -- was not translated.
"""
_READERS: Final = {"parquet": "read_parquet", "json": "read_json", "csv": "read_csv"}
_SPLITS: Final = {"train": "train", "valid": "val", "test": "test"}
"""GraphStorm's names of splits, and Hopper's."""
_LABELS: Final = {"classification": "label", "regression": "value"}
"""Hopper's columns of labels, by GraphStorm's types of tasks"""
_SPECIAL: Final = re.compile(r"id|src|dst|split|time|weight|(label|value)([._].*)?")
"""Columns that mean something to Hopper."""
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

    A GraphError tells that the configuration cannot be read, and names the field, or that ``out``
    is there.
    """
    if out.exists():
        raise GraphError(f"{out}: expected no such file, found one; remove it, or choose another")
    described = parse_json(TypeAdapter(_Construction), read_json(file), str(file))
    queries: dict[str, dict[str, list[_Table]]] = {"nodes": {}, "edges": {}}
    for nodes in described.nodes:
        queries["nodes"].setdefault(nodes.node_type, []).append(nodes)
    for edges in described.edges:
        queries["edges"].setdefault("/".join(edges.relation), []).append(edges)
    encoders, text = dict[str, str](), ""
    for kind, of_kind in queries.items():
        text += f"\n[{kind}]\n"
        for name, blocks in of_kind.items():
            sql = _Query(f"{file}: {kind}: {name}", blocks, encoders).sql()
            text += f"{json.dumps(name, ensure_ascii=False)} = {toml_text(sql)}\n"
    head = "\n[encoders]\n" if encoders else ""
    for model, name in encoders.items():
        options = f"{{model_name_or_path = {json.dumps(model)}}}"
        words = f'encoder = "sentence_transformers:SentenceTransformer", options = {options}'
        head += f'{name} = {{{words}, cache = "texts.sqlite"}}\n'
    write_text(out, _HEAD.format(file=file.name) + head + text)


class _Query:
    """The query of a node type or a relation, whose blocks have its rows side by side."""

    def __init__(self, where: str, blocks: Sequence[_Table], encoders: dict[str, str]) -> None:
        self._where, self._blocks, self._encoders = where, blocks, encoders
        self._remarks: list[str] = []
        self._tasks = sum(len(block.labels) for block in blocks)

    def sql(self) -> str:
        """Return the query."""
        columns = [f"{sql} AS {name}" for name, sql in self._keys().items()]
        has_split = False
        for number, block in enumerate(self._blocks):
            for feature in block.features:
                columns += self._features(number, feature)
            for label in block.labels:
                columns += self._label(number, label)
                split = self._split(number, label)
                if split and has_split:
                    self._remarks.append(f"splits of {label.label_col}")
                elif split:
                    columns.append(f"{split} AS split")
                    has_split = True
        sources = [
            f"{block.source(self._where)} AS b{number}" for number, block in enumerate(self._blocks)
        ]
        remarks = "".join(f"       -- {remark}\n" for remark in self._remarks)
        selected = ",\n       ".join(columns)
        return f"SELECT {selected}\n{remarks}FROM " + "\nPOSITIONAL JOIN ".join(sources)

    def _column(self, number: int, name: str) -> str:
        """Return a block's column in SQL."""
        prefix = f"b{number}." if len(self._blocks) > 1 else ""
        return prefix + quote_name(name)

    def _keys(self) -> dict[str, str]:
        """Return the columns that identify nodes or edges, by Hopper's names."""
        for number, block in enumerate(self._blocks):
            if isinstance(block, _Edges):
                ends = {"src": block.source_id_col, "dst": block.dest_id_col}
                return {end: self._column(number, name) for end, name in ends.items()}
            if isinstance(block, _Nodes) and block.node_id_col:
                return {"id": self._column(number, block.node_id_col)}
        raise GraphError(f"{self._where}: node_id_col: missing field")

    def _features(self, number: int, feature: _Feature) -> Iterator[str]:
        """Yield the columns of a feature, or tell why it has none."""
        transform, given = dict(feature.transform), feature.feature_col
        for column in [given] if isinstance(given, str) else given:
            name = feature.feature_name or column
            name = name if isinstance(given, str) else f"{name}_{column}"
            sql = _transform(self._column(number, column), transform, self._encoders)
            if not sql:
                self._remarks.append(f"{name}: {json.dumps(transform)} of {column}")
                continue
            # Otherwise it would be no feature.
            name = f"{name}_feature" if _SPECIAL.fullmatch(name) else name
            yield f"{sql} AS {quote_name(name)}"

    def _label(self, number: int, label: _Label) -> Iterator[str]:
        """Yield the column of a label, or tell why it has none."""
        kind = _LABELS.get(label.task_type)
        if kind:
            # Names of tasks have no other characters.
            name = re.sub(r"[^A-Za-z0-9.+-]+", "-", label.label_col)
            task = f".{name}" if self._tasks > 1 else ""
            yield f"{self._column(number, label.label_col)} AS {quote_name(kind + task)}"
        elif label.task_type != "link_prediction":
            self._remarks.append(f"label {label.label_col}: task_type {label.task_type!r}")

    def _split(self, number: int, label: _Label) -> str:
        """Return the splits of what has a label, in SQL; "" = there are none, or none in SQL."""
        files = label.custom_split_filenames
        if files and isinstance(self._blocks[number], _Edges):
            self._remarks.append(f"splits: {json.dumps(dict(files))}")
            return ""
        if files:
            return _custom_splits(files, next(iter(self._keys().values())))
        # The same at every import, as a draw by hash is.
        share, total, cases = "hash(row_number() OVER ()) % 1000000 / 1e6", 0.0, ""
        for name, part in zip(_SPLITS.values(), label.split_pct, strict=False):
            total += part
            cases += f" WHEN {share} < {total:g} THEN '{name}'"
        if label.task_type in _LABELS:
            cases = f" WHEN {self._column(number, label.label_col)} IS NULL THEN NULL{cases}"
        return f"CASE{cases} END"


def _transform(column: str, transform: Mapping[str, Any], encoders: dict[str, str]) -> str:
    """Return a transformed column in SQL; "" where SQL has no such transformation."""
    match transform:
        case {"name": "max_min_norm"}:
            low, high = (
                _bound(column, transform, name, within)
                for name, within in (("min", "greatest"), ("max", "least"))
            )
            sql = f"(least(greatest({column}, {low}), {high}) - {low}) / ({high} - {low})"
            return _unless_missing(column, sql)
        case {"name": "standard"}:
            return f"{column} / {transform.get('sum_val', f'sum({column}) OVER ()')}"
        case {"name": "to_categorical", **rest} if "separator" not in rest:
            return f"{column}::VARCHAR"
        case {"name": "bucket_numerical", "range": [low, high], "bucket_cnt": count, **rest} if (
            "slide_window_size" not in rest
        ):
            place = f"floor(({column} - {low}) * {count} / ({high} - {low}))"
            sql = f"greatest(0, least({place}, {count} - 1))::INT::VARCHAR"
            return _unless_missing(column, sql)
        case {"name": "bert_hf" | "tokenize_hf", "bert_model": str(model), **_rest}:
            name = encoders.setdefault(model, f"embed_{len(encoders) + 1}")
            return f"{name}({column})"
        case {"truncate_dim": int(width)}:
            return f"{column}[:{width}]"
        case {"name": str(name)} if name not in ("", "noop", "no-op"):
            return ""
    return column


def _unless_missing(column: str, sql: str) -> str:
    """Return a value in SQL, or NULL for NULL, which DuckDB's greatest and least pass over."""
    return f"CASE WHEN {column} IS NOT NULL THEN {sql} END"


def _bound(column: str, transform: Mapping[str, Any], name: str, within: str) -> str:
    """Return the smallest or largest value of a column, as a transformation bounds it."""
    if f"{name}_val" in transform:
        return str(transform[f"{name}_val"])
    found, bound = f"{name}({column}) OVER ()", transform.get(f"{name}_bound")
    return found if bound is None else f"{within}({found}, {bound})"


def _custom_splits(files: Mapping[str, Any], key: str) -> str:
    """Return the splits that files of ids (JSON, text or Parquet) name, in SQL; "" = none."""
    cases = []
    for name, split in _SPLITS.items():
        paths = files.get(name) or []
        for path in [paths] if isinstance(paths, str) else paths:
            column = files.get("column") or ["id"]
            column = column if isinstance(column, str) else column[0]
            ids = (
                f"FROM {quote_text(path)} AS ids SELECT ids.{quote_name(column)}::VARCHAR"
                if path.endswith(".parquet")
                else f"FROM read_csv({quote_text(path)}, header=false, columns={{'id': 'VARCHAR'}})"
            )
            cases.append(f"WHEN {key}::VARCHAR IN ({ids}) THEN '{split}'")
    return f"CASE {' '.join(cases)} END" if cases else ""
