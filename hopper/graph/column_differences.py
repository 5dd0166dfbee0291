"""Compare how the features and classes of a trained model and of a graph were encoded."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from hopper.graph.columns import FeatureColumn, name_of

_SHOWN: Final = 6
"""how many values of a list are shown"""


def find_column_difference(
    trained: Mapping[str, tuple[FeatureColumn, ...]], given: Mapping[str, tuple[FeatureColumn, ...]]
) -> str:
    """Describe the first difference between how a run's features and others were encoded.

    The text names table, column and values; "" if there is none. Where columns of either, by table,
    have no names, only scales are compared.
    """
    for table in sorted(trained.keys() & given.keys()):
        before, now = trained[table], given[table]
        names = [[column.name for column in columns] for columns in (now, before)]
        if not all(names) or "" in names[0] + names[1]:
            scales = [_scales_of(columns) for columns in (now, before)]
            if scales[0] != scales[1]:
                return f"{table}: {_compare('has numbers scaled by', *scales)}"
        elif names[0] != names[1]:
            return f"{table}: {_compare('has the columns', *names)}"
        for old, new in zip(before, now, strict=False):
            difference = _differ(new, old)
            if difference:
                return f"{table}: {name_of(new, 0) if new.name else 'its matrix'} {difference}"
    return ""


def _scales_of(columns: Iterable[FeatureColumn]) -> tuple[str, ...]:
    scales = {column.scale for column in columns if not column.categories}
    return tuple(scale or "nothing" for scale in sorted(scales or {""}))


def _differ(new: FeatureColumn, old: FeatureColumn) -> str:
    """Describe how the encodings of a column differ; "" = they do not."""
    if new.categories != old.categories:
        return _compare("has the categories", new.categories, old.categories)
    if new.numbers != old.numbers:
        return f"holds {new.numbers} numbers; the run was trained with {old.numbers}"
    scales = [(column.scale, column.offset, column.divisor) for column in (new, old)]
    if scales[0] != scales[1]:
        return f"is scaled by {_scale_text(new)}; the run was trained with {_scale_text(old)}"
    if new.missing and old.missing and new.fill != old.fill:
        return _compare("has missing numbers filled with", new.fill, old.fill)
    return ""


def _scale_text(column: FeatureColumn) -> str:
    if not column.offset:
        return column.scale or "nothing"
    offset, divisor = (_show(values, ()) for values in (column.offset, column.divisor))
    return f"{column.scale} (offset {offset}, divisor {divisor})"


def _compare(what: str, new: Iterable[object], old: Iterable[object]) -> str:
    values = tuple(new), tuple(old)
    return f"{what} {_show(*values)}; the run was trained with {_show(*values[::-1])}"


def _show(values: tuple[Any, ...], others: tuple[Any, ...]) -> str:
    """Show a few values, from the first on that differs from those of another list."""
    pairs = zip(values, others, strict=False)
    first = next((number for number, pair in enumerate(pairs) if pair[0] != pair[1]), 0)
    first = first if len(values) > _SHOWN else 0
    texts = [f"{v:.6g}" if isinstance(v, float) else str(v) for v in values[first:][:_SHOWN]]
    before, after = ["..."] * (first > 0), ["..."] * (len(values) > first + _SHOWN)
    return f"[{', '.join([*before, *texts, *after])}]"


def find_class_difference(
    trained: Mapping[str, Iterable[str]], given: Mapping[str, Iterable[str]]
) -> str:
    """Describe the first difference between the names of a run's classes and others.

    Names are by task, "" if there is one. Classes without names, which the source numbered, are not
    compared.
    """
    for task in sorted(trained.keys() & given.keys()):
        old, new = tuple(trained[task]), tuple(given[task])
        if old and new and old != new:
            what = f"labels{f' of task {task}' if task else ''}"
            return f"{what}: {_compare('has the classes', new, old)}"
    return ""
