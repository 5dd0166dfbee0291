"""Columns of features: their names, how they were encoded, and how large their numbers are.

They are an optional part of ``graph.json``, specified in docs/reference/graph-directory.md.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

from pydantic import ConfigDict, Field, FiniteFloat, NonNegativeInt, PositiveInt, TypeAdapter

from hopper.errors import GraphError
from hopper.graph.json_file import parse_json

ScaleName = Literal["standard", "minmax", "log"]
_Numbers = tuple[FiniteFloat, ...]

_WIDE: Final = 100.0
"""Root mean square from which a column's numbers hurt training."""
_SHOWN: Final = 6
"""How many columns a line names."""


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
    divisor: tuple[Annotated[FiniteFloat, Field(gt=0)], ...] = ()
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


def to_plain(value: Any) -> Any:
    """Convert a value of a schema to what JSON holds, without fields that say nothing."""
    if is_dataclass(value):
        told = {field.name: getattr(value, field.name) for field in fields(value)}
        silent = {field.name: field.default for field in fields(value)}
        return {name: to_plain(of) for name, of in told.items() if of != silent[name]}
    if hasattr(value, "_asdict"):
        return value._asdict()
    return [to_plain(item) for item in value] if isinstance(value, tuple) else value


def width_of(columns: Iterable[FeatureColumn]) -> int:
    """Return the number of columns of features that some columns become."""
    return sum(column.width for column in columns)


def columns_to_json(columns: Iterable[FeatureColumn]) -> list[dict[str, Any]]:
    """Convert columns to their form in ``graph.json``, without fields that say nothing."""
    return [to_plain(column) for column in columns]


def columns_from_json(value: object, where: str) -> tuple[FeatureColumn, ...]:
    """Parse columns; inverts :func:`columns_to_json`. Errors name ``where`` and the field."""
    columns = parse_json(_COLUMNS, value, where)
    for fault in find_faults(columns):
        raise GraphError(f"{where}: {fault}")
    return columns


def find_faults(columns: Iterable[FeatureColumn]) -> Iterator[str]:
    """Yield the columns without the numbers that their scale and filling need, or with others."""
    for column in columns:
        fitted = [values for values in (column.fill, column.offset, column.divisor) if values]
        needed = bool(column.missing) + 2 * (column.scale in ("standard", "minmax"))
        if len(fitted) != needed or any(len(values) != column.numbers for values in fitted):
            yield (
                f"column {column.name!r}: fill, offset, divisor: expected {column.numbers} numbers "
                "each where missing and scale need them"
            )


def tell_wide_columns(tables: Mapping[str, Iterable[FeatureColumn]]) -> str:
    """Name the columns whose numbers are so large that training suffers, and what to do, in a line.

    The line is "" if the columns of no table are.
    """
    wide = [
        f"{table}: {name_of(column, found.at)} ({_number(found.min)} to {_number(found.max)})"
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


def name_of(column: FeatureColumn, at: int = 0) -> str:
    """Name a column, or one of its numbers, in a message."""
    if not column.name:
        return f"column {at}"
    return f"column {column.name!r}" + (f", number {at}" if column.numbers > 1 else "")
