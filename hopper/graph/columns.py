"""Columns of features: their names, how they were encoded, and how large their numbers are.

They are an optional part of ``graph.json``, specified in docs/reference/graph-directory.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from pydantic import (
    ConfigDict,
    FiniteFloat,
    NonNegativeInt,
    PositiveInt,
    TypeAdapter,
    ValidationError,
)
from pydantic import Field as Checked

from hopper.errors import GraphError

ScaleName = Literal["standard", "minmax", "log"]
_Numbers = tuple[FiniteFloat, ...]

_WIDE: Final = 100.0
"""Root mean square from which a column's numbers hurt training."""
_SHOWN: Final = 6
"""How many columns a line names, and how many values of a list."""


class ColumnRange(NamedTuple):
    """How large the numbers of a column are, as they are stored.

    Attributes
    ----------
    at: which number of a list, from 0, if the column holds lists.
    """

    at: NonNegativeInt
    min: FiniteFloat
    max: FiniteFloat
    mean: FiniteFloat
    std: FiniteFloat

    @property
    def is_wide(self) -> bool:
        """Return whether numbers are so far from 1 that training suffers."""
        return (self.mean**2 + self.std**2) ** 0.5 > _WIDE


@dataclass(frozen=True)
class FeatureColumn:
    """A column of the source, and the columns of features that it became.

    Attributes
    ----------
    name: "" = the columns of a matrix, which have no names.
    categories: the column's distinct texts, in order of their columns of features; empty if it
        holds numbers. A row without a text has only zeros.
    numbers: how many numbers a row has, if the column holds lists of numbers.
    unknown: "zeros" if rows with other texts have only zeros; "" = they were refused.
    missing, fill: what missing numbers became, and the number itself for each of ``numbers``; "" =
        they were refused.
    scale, offset, divisor: how numbers x were scaled. "standard", "minmax": (x - offset) / divisor,
        each for each of ``numbers``; "log": sign(x) log(1 + |x|); "row": all numbers of a row were
        divided by their sum.
    ranges: how large the numbers are now; of lists and matrices only those that are wide.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    name: str
    categories: tuple[str, ...] = ()
    numbers: PositiveInt = 1
    unknown: Literal["", "zeros"] = ""
    missing: Literal["", "zero", "mean"] = ""
    fill: _Numbers = ()
    scale: Literal["", "row"] | ScaleName = ""
    offset: _Numbers = ()
    divisor: tuple[Annotated[FiniteFloat, Checked(gt=0)], ...] = ()
    ranges: tuple[ColumnRange, ...] = ()

    @property
    def width(self) -> int:
        """Number of columns of features that it becomes."""
        return len(self.categories) or self.numbers

    @property
    def names(self) -> list[str]:
        """The names of these columns of features."""
        if self.categories:
            return [f"{self.name}={category}" for category in self.categories]
        if self.name and self.numbers == 1:
            return [self.name]
        return [f"{self.name}_{number}".lstrip("_") for number in range(self.numbers)]


_COLUMNS: Final = TypeAdapter(tuple[FeatureColumn, ...])
_TRIVIAL: Final = {field.name: field.default for field in fields(FeatureColumn)}


def width_of(columns: Iterable[FeatureColumn]) -> int:
    """Return the number of columns of features that some columns become."""
    return sum(column.width for column in columns)


def columns_to_json(columns: Iterable[FeatureColumn]) -> list[dict[str, Any]]:
    """Convert columns to their form in ``graph.json``, without fields that say nothing."""
    entries = []
    for column in columns:
        values = {name: getattr(column, name) for name in _TRIVIAL}
        entry = {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
            if value != _TRIVIAL[name]
        }
        if column.ranges:
            entry["ranges"] = [found._asdict() for found in column.ranges]
        entries.append(entry)
    return entries


def columns_from_json(value: object, where: str, width: int | None) -> tuple[FeatureColumn, ...]:
    """Parse columns; inverts :func:`columns_to_json`.

    Parameters
    ----------
    where: file and field, for errors.
    width: number of columns of features that they must become.

    Raises
    ------
    GraphError: a field is unknown or wrong. The text names it.
    """
    try:
        columns = _COLUMNS.validate_python(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, (where, *first["loc"])))
        raise GraphError(f"{place}: {first['msg']}, given {first['input']!r:.100}") from None
    if width_of(columns) != width:
        raise GraphError(
            f"{where}: expected columns of feature_dim {width}, given {width_of(columns)}"
        )
    for column in columns:
        fitted = [values for values in (column.fill, column.offset, column.divisor) if values]
        needed = bool(column.missing) + 2 * (column.scale in ("standard", "minmax"))
        if len(fitted) != needed or any(len(values) != column.numbers for values in fitted):
            raise GraphError(
                f"{where}: column {column.name!r}: fill, offset, divisor: expected "
                f"{column.numbers} numbers each where missing and scale need them"
            )
    return columns


def tell_wide_columns(tables: Mapping[str, Iterable[FeatureColumn]]) -> str:
    """Name the columns whose numbers are so large that training suffers, and what to do, in a line.

    Parameters
    ----------
    tables: the columns of each node type or relation.

    Returns
    -------
    The line; "" if there are none.
    """
    wide = [
        f"{table}: {_name_of(column, found.at)} ({_number(found.min)} to {_number(found.max)})"
        for table, columns in tables.items()
        for column in columns
        for found in column.ranges
        if found.is_wide
    ]
    if not wide:
        return ""
    more = f" and {len(wide) - _SHOWN:,} more" if wide[_SHOWN:] else ""
    return (
        f"columns with numbers far from 1, which hurt training: {', '.join(wide[:_SHOWN])}{more}; "
        "import again with --scale standard (or minmax, or log)"
    )


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _name_of(column: FeatureColumn, at: int) -> str:
    if not column.name:
        return f"column {at}"
    return f"column {column.name!r}" + (f", number {at}" if column.numbers > 1 else "")


def find_column_difference(
    trained: Mapping[str, tuple[FeatureColumn, ...]], given: Mapping[str, tuple[FeatureColumn, ...]]
) -> str:
    """Describe the first difference between how a run's features and others were encoded.

    Parameters
    ----------
    trained, given: the columns by table. Where either has no names, only scales are compared.

    Returns
    -------
    A text that names table, column and values; "" if there is none.
    """
    for table in trained.keys() & given.keys():
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
                return f"{table}: {_name_of(new, 0) if new.name else 'its matrix'} {difference}"
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

    Parameters
    ----------
    trained, given: the names of classes by task, "" if there is one. Classes without names, which
        the source numbered, are not compared.
    """
    for task in trained.keys() & given.keys():
        old, new = tuple(trained[task]), tuple(given[task])
        if old and new and old != new:
            what = f"labels{f' of task {task}' if task else ''}"
            return f"{what}: {_compare('has the classes', new, old)}"
    return ""
