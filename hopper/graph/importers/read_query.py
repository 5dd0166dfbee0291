"""Read the results of queries as the tables of a graph: ids, ends of edges, times, weights, splits,
labels and features."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from hopper.errors import GraphError
from hopper.graph.array_file import iter_pieces, release_pages
from hopper.graph.importers.arrays import describe_classes, join_tasks
from hopper.graph.importers.database import Database
from hopper.graph.importers.encode import LikeGraph
from hopper.graph.importers.query import Query, QueryReader, QueryTexts, quote_text, row_number
from hopper.graph.importers.query_features import read_features
from hopper.graph.importers.tables import GraphTables, Problems, Table
from hopper.graph.layout import check_name, id_dtype
from hopper.graph.schema import Labels, Relation

_MOST_CLASSES: Final = 2**31
_INTEGER: Final = r"'\s*[+-]?[0-9]+\s*'"
_LABEL: Final = re.compile(r"(label|value)(?:\.([A-Za-z0-9.+-]+))?(?:_(\d+))?")
"""A column of labels: its kind, task and place."""

_Read = tuple[Labels, NDArray[Any]]


def read_queries(
    queries: Iterable[Query],
    database: Database,
    tables: GraphTables,
    where: str,
    *,
    follows: bool = False,
    like: LikeGraph | None = None,
) -> None:
    """Read the tables of queries, those of node types first, and choose what is predicted, unless
    that follows from an option. What is wrong with a column becomes a problem of the source."""
    ids = dict[str, QueryReader]()
    for query in queries:
        step = (query, database, tables, ids, like)
        tables.problems.attempt(query.where, "table", _read_query, *step)
    for relation in list(tables.edges):
        if not {relation.src, relation.dst} <= set(tables.nodes):
            del tables.edges[relation]
    if like is not None and all(table.splits is None for table in tables.all.values()):
        tables.targets = like.schema.target_relations or (like.schema.target,)
        return
    # Where a table or a column is left out, the target may seem to be unclear.
    problems = Problems() if tables.problems else tables.problems
    problems.attempt(where, "target", tables.choose_target, where, follows)


def _read_query(
    query: Query,
    database: Database,
    tables: GraphTables,
    ids: dict[str, QueryReader],
    like: LikeGraph | None,
) -> None:
    """Read a table into the graph's; the ends of edges become 0 where ids could not be read."""
    owner = query.owner
    needed = ("src", "dst") if isinstance(owner, Relation) else ("id",)
    with database.phases.phase(str(owner)), query.explain_errors(database):
        reader = QueryReader(query, database, tables, like, _find_rows(query, ids))
        attempt = reader.attempt
        labels = _find_labels(query.names, query.header)
        of_labels = {name for _, names in labels.values() for name in names}
        readers: dict[str, Any] = {"time": _read_times, "split": _read_splits}
        if isinstance(owner, Relation):
            readers["weight"] = _read_weights
        special = {*needed, *readers, *of_labels}
        missing = [name for name in needed if name not in query.names]
        # Columns with other names than Hopper's would each be told as no feature.
        names = [name for name in query.names if name not in special and not missing]
        table, (columns, features) = Table(reader.count), read_features(reader, names)
        if columns:
            table.columns, table.features = columns, features
        for name in missing:
            expected = (
                f"column {name}: expected, but missing in {list(query.names)}: rename it, or say "
                f"which it is (AS {name}) in a query for hopper dataset import sql"
            )
            tables.problems.add(query.where, name, f"{query.header}: {expected}")
        for name, read in readers.items():
            if name in query.names:
                setattr(table, f"{name}s", attempt(name, read, reader))
        read_labels = attempt("labels", _read_labels, reader, labels)
        table.labels, table.classes = read_labels or (None, {})
        for task, classes in table.classes.items():
            of_task = f"{task}: " if task else ""
            tables.notes.append(f"labels of {owner}: {of_task}{describe_classes(classes)}")
        if isinstance(owner, str) and "split" in query.names and not labels:
            tables.notes.append(
                f"{owner}: a split but no column label or value, so nothing is predicted; "
                f"features: {', '.join(names)}"
            )
        if isinstance(owner, str):
            tables.nodes[owner], table.names = table, attempt("id", _read_ids, reader)
            if not tables.problems.has_failed(query.where, "id"):
                ids[owner] = reader
            return
    tables.edges[owner] = table
    table.src = table.dst = np.zeros(reader.count, np.int32)
    has_failed = any(tables.problems.has_failed(query.where, name) for name in needed)
    if owner.src in ids and owner.dst in ids and not has_failed:
        table.src, table.dst = _read_ends(reader, {"src": ids[owner.src], "dst": ids[owner.dst]})


def _find_labels(names: Sequence[str], where: str) -> dict[str, tuple[str, list[str]]]:
    """Find the columns of labels, and their kind, by task; "" = an only task without a name."""
    tasks: dict[str, list[tuple[str, int, str]]] = {}
    for name in names:
        match = _LABEL.fullmatch(name)
        if match is None and name.startswith(("label.", "value.")):
            raise GraphError(
                f"{where}: column {name}: expected a task's name of letters, digits, ., + and -"
            )
        if match is not None and not (match[1] == "value" and match[3]):
            kind = "several" if match[3] else match[1]
            tasks.setdefault(match[2] or "", []).append((kind, int(match[3] or 0), name))
    if len(tasks) > 1 and "" in tasks:
        raise GraphError(
            f"{where}: expected labels of tasks (label.NAME, value.NAME) or of none, given "
            f"{', '.join(filter(None, tasks))} and {', '.join(name for *_, name in tasks[''])}"
        )
    found = {}
    for task, columns in tasks.items():
        if len({kind for kind, *_ in columns}) > 1:
            dot = f".{task}" if task else ""
            raise GraphError(
                f"{where}: expected one of label{dot}, value{dot}, label{dot}_0 label{dot}_1 ..., "
                f"given {[name for *_, name in columns]}"
            )
        found[task] = columns[0][0], [name for *_, name in sorted(columns)]
    return found


def _read_ids(reader: QueryReader) -> Sequence[str] | None:
    """Check that the ids of nodes are distinct; return them as names unless they are rows."""
    column, expected = reader.column("id"), "a distinct id"
    missing = column if reader.query.typed else reader.text("id")
    row = reader.first("min(rowid)", f"WHERE {missing} IS NULL")
    if row is not None:
        raise reader.refuse(row, "id", expected)
    if reader.kind("id") == "integer" or not reader.query.typed:
        number = "rowid::VARCHAR" if reader.kind("id") == "text" else "rowid"
        if reader.first(f"bool_and({column} = {number})") is not False:
            reader.ids_are_rows = True
            return None
    repeated = reader.select(column, "GROUP BY 1 HAVING count(*) > 1")
    rows = reader.select(
        f"rowid AS row, min(rowid) OVER (PARTITION BY {column}) AS first",
        f"WHERE {column} IN ({repeated})",
    )
    later = f"WITH ids AS ({rows}) FROM ids WHERE row > first ORDER BY row LIMIT 1"
    for row, _ in reader.database.fetch(later):
        raise reader.refuse(row, "id", expected)
    return QueryTexts(reader, "id")


def _read_ends(
    reader: QueryReader, nodes: Mapping[str, QueryReader]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read the ends of edges as rows of the node tables; 0 if anything is wrong with them."""
    columns, joins, ends = [], [], []
    for end, ids in nodes.items():
        column = reader.attempt(end, _find_end, reader, end, ids)
        columns.append(column or "0")
        if column and not ids.ids_are_rows:
            key = f"{end}.{ids.column('id')}"
            same = f"{reader.table}.{reader.column(end)} = {key}"
            joins.append(f"LEFT JOIN {ids.table} AS {end} ON {same}")
        ends.append(reader.database.array(id_dtype(ids.count), (reader.count,)))
    # Without a join, rows have their order.
    rest = f"{' '.join(joins)} ORDER BY {reader.table}.rowid" if joins else ""
    phase, expected = f"{reader.query.owner}: ids to numbers", "an id of the node table"
    with reader.database.phases.phase(phase, reader.count) as progress:
        for first, batch in reader.scan(*columns, rest=rest):
            for name, rows, array in zip(nodes, batch.columns, ends, strict=True):
                reader.attempt(name, reader.keep, array, first, rows, name, expected)
            progress.advance(batch.num_rows)
    return ends[0], ends[1]


def _find_end(reader: QueryReader, end: str, ids: QueryReader) -> str:
    """Return the row of an end in SQL; NULL where its id is unknown."""
    column = f"{reader.table}.{reader.column(end)}"
    if end in reader.rows:
        return column
    kinds = reader.kind(end), ids.kind("id")
    if (kinds[0] == "text") != (kinds[1] == "text") or kinds[0] == "list":
        raise reader.refuse_type(end, f"ids of type {ids.types['id']}, as in the node table")
    if not ids.ids_are_rows:
        return f"{end}.rowid"
    return row_number(column, ids.count, is_text=kinds[0] == "text")


def _find_rows(query: Query, ids: Mapping[str, QueryReader]) -> dict[str, int]:
    """Find the ends of edges in CSV whose ids are rows, and how many rows there are."""
    if query.typed or isinstance(query.owner, str):
        return {}
    ends = {"src": ids.get(query.owner.src), "dst": ids.get(query.owner.dst)}
    return {
        end: nodes.count
        for end, nodes in ends.items()
        if nodes is not None and nodes.ids_are_rows and not nodes.query.typed and end in query.names
    }


def _read_weights(reader: QueryReader) -> NDArray[np.float32]:
    number = reader.number("weight")
    sql = f"CASE WHEN {number} > 0 AND {number} < 'inf'::DOUBLE THEN {number} END"
    return reader.read("weight", sql, np.float32, "a positive number")


def _read_times(reader: QueryReader) -> NDArray[np.int64]:
    """Read integers as they are, dates as seconds since 1970, in UTC unless they have a zone."""
    column, kind = reader.column("time"), reader.kind("time")
    integer = f"TRY_CAST({column} AS BIGINT)"
    date = column if kind == "time" else f"TRY_CAST({column} AS TIMESTAMPTZ)"
    seconds = f"TRY_CAST(floor(epoch({date})) AS BIGINT)"
    is_integer = f"regexp_full_match({column}, {_INTEGER})"
    readers = {
        "text": f"CASE WHEN {is_integer} THEN {integer} ELSE {seconds} END",
        "integer": integer,
        "number": f"CASE WHEN {column} = trunc({column}) THEN {integer} END",
        "time": seconds,
    }
    if kind not in readers:
        raise reader.refuse_type("time", "integers or dates")
    return reader.read("time", readers[kind], np.int64, "an integer, or a date such as 2026-05-31")


def _read_splits(reader: QueryReader) -> dict[str, NDArray[np.int64]]:
    """Read the rows of each split, in order of the first; those without a name are in none."""
    text, splits = reader.text("split"), dict[str, NDArray[np.int64]]()
    groups = f"WHERE {text} IS NOT NULL GROUP BY 1 ORDER BY min(rowid)"
    for name, count in reader.database.fetch(reader.select(f"{text}, count(*)", groups)):
        check_name(name, "split", reader.query.where)
        splits[name] = rows = reader.database.array(np.int64, (count,))
        for first, batch in reader.scan("rowid", rest=f"WHERE {text} = {quote_text(name)}"):
            rows[first : first + batch.num_rows] = batch.column(0).to_numpy()
            release_pages(rows)
    return splits


def _read_labels(
    reader: QueryReader, columns: Mapping[str, tuple[str, list[str]]]
) -> tuple[_Read | None, dict[str, list[str]]]:
    """Read the labels of all tasks; return them, and names of classes by task."""
    by_task, names = dict[str, _Read](), dict[str, list[str]]()
    known = reader.like.labels(reader.query.owner) if reader.like is not None else {}
    for task, (kind, of_task) in columns.items():
        step = (reader, task, kind, of_task, known.get(task))
        read = reader.attempt(of_task[0], _read_task, *step)
        if read is not None:
            by_task[task], classes = read
            names |= {task: classes} if classes else {}
    if "" in by_task or not by_task:
        return by_task.get(""), names
    return join_tasks(by_task, f"{reader.query.where}: labels"), names


def _read_task(
    reader: QueryReader,
    task: str,
    kind: str,
    columns: Sequence[str],
    known: tuple[Labels, list[str]] | None,
) -> tuple[_Read, list[str]]:
    """Read the labels of a task, and the names of its classes; known ones are kept."""
    name, names = columns[0], list[str]()
    if kind == "value":
        sql, expected = reader.number_or_nan(name)
        values, labels = reader.read(name, sql, np.float32, expected), Labels("float", 1)
    elif kind == "several":
        labels = Labels("multi_hot", len(columns))
        values = reader.database.array(np.uint8, (reader.count, len(columns)))
        for place, column in enumerate(columns):
            number = reader.number(column)
            bit = f"CASE WHEN {number} IN (0, 1) THEN {number}::UTINYINT END"
            reader.read(column, bit, np.uint8, "0 or 1", values[:, place])
    elif (known and known[1]) or _has_class_names(reader, name):
        what = f"labels of task {task}" if task else "labels"
        names, code = reader.encode(name, known and known[1], what)
        values, labels = reader.read(name, code, np.int64), Labels("class", max(1, len(names)))
        if known and known[1]:
            return (known[0], values), names
    else:
        values = _read_classes(reader, name)
        largest = max((int(piece.max()) for _, piece in iter_pieces(values)), default=-1)
        labels = Labels("class", max(1, largest + 1))
    if known and reader.like is not None:
        reader.like.check_labels(reader.query.owner, known[0], labels, names)
        return (known[0], values), []
    return (labels, values), names


def _has_class_names(reader: QueryReader, name: str) -> bool:
    """Return whether classes have names: typed texts, or other texts of which any is no integer."""
    kind = reader.kind(name)
    if reader.types[name] == "BOOLEAN":
        # "false" and "true" are the names of classes 0 and 1.
        return True
    if kind not in ("text", "integer"):
        raise reader.refuse_type(name, "integers or texts, the numbers or names of classes")
    if kind == "integer" or reader.query.typed:
        return kind == "text"
    return reader.first(f"bool_and(regexp_full_match({reader.text(name)}, {_INTEGER}))") is False


def _read_classes(reader: QueryReader, name: str) -> NDArray[np.int64]:
    """Read numbers of classes; -1 where there is none."""
    if reader.kind(name) == "integer":
        column = f"greatest(coalesce({reader.column(name)}, -1), -1)::BIGINT"
        return reader.read(name, column, np.int64)
    text = reader.text(name)
    number = f"TRY_CAST({text} AS BIGINT)"
    fits = f"{number} >= 0 AND {number} < {_MOST_CLASSES}"
    sql = f"CASE WHEN {text} IS NULL THEN -1 WHEN {fits} THEN {number} END"
    return reader.read(name, sql, np.int64, "a class (an integer of at least 0) or nothing")
