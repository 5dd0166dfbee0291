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
    width: number of columns of features that they must become; None = any.

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
    if width not in (None, width_of(columns)):
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
    """Name a column in a message.

    Parameters
    ----------
    at: which of its numbers, if it holds several.
    """
    if not column.name:
        return f"column {at}"
    return f"column {column.name!r}" + (f", number {at}" if column.numbers > 1 else "")
