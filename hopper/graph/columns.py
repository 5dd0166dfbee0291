"""Columns of features: their names, how they were encoded and rounded, and how large numbers are.

They are an optional part of ``graph.json``, specified in docs/reference/graph-directory.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any, ClassVar, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, FiniteFloat, NonNegativeInt, PositiveInt, TypeAdapter

from hopper.errors import GraphError
from hopper.graph.json_file import parse_json

ScaleName = Literal["standard", "minmax", "log"]
_Numbers = tuple[FiniteFloat, ...]
_Distance = Annotated[float, Field(strict=True, ge=0)]

_WIDE: Final = 100.0
"""Root mean square from which a column's numbers hurt training."""
_SHOWN: Final = 6
"""How many columns, or values of a list, a line names."""


class RoundingError(NamedTuple):
    """The distance of stored rows from those that they were made of."""

    absolute: _Distance
    """the largest difference of any number"""
    relative: _Distance | None
    """the largest difference in a row, divided by the row's largest absolute value; None where it
    has no bound, as for averages of rounded rows"""

    def __str__(self) -> str:
        share = self.relative
        relative = "" if share is None else f", and by {share:.2%} of its row's largest"
        return f"a number is off by up to {self.absolute:.2g}{relative}"

    def combine(self, other: RoundingError, how: Callable[[list[float]], float]) -> RoundingError:
        """Bound the error of two sets of rows, by ``max``, or of rows with this error that were
        rounded again, with ``other``, by ``sum``."""
        known = [error for error in (self.relative, other.relative) if error is not None]
        relative = how(known) if len(known) == 2 else None
        return RoundingError(how([self.absolute, other.absolute]), relative)


def find_error(before: NDArray[np.float32], after: NDArray[np.float32]) -> RoundingError:
    """Measure how far rows [n, dim] are off after they were rounded."""
    # The difference of two float32 numbers needs more bits than they have.
    differences = np.abs(after.astype(np.float64) - before).max(1, initial=0)
    largest = np.abs(before).max(1, initial=0).astype(np.float64)
    shares = differences / np.where(largest > 0, largest, 1)
    return RoundingError(float(differences.max(initial=0)), float(shares.max(initial=0)))


class ColumnRange(NamedTuple):
    """How large the numbers of a column are, as they are stored."""

    at: NonNegativeInt
    """which number of a list, from 0, if the column holds lists"""
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

    Its fields are those of ``columns`` in docs/reference/graph-directory.md. A field that is empty
    says nothing: no categories, or nothing done. ``fill``, ``offset`` and ``divisor`` have a value
    for each of ``numbers``.
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

    def describe(self, at: int = 0) -> str:
        """Name the column, or one of its numbers, in a message."""
        if not self.name:
            return f"column {at}"
        return f"column {self.name!r}" + (f", number {at}" if self.numbers > 1 else "")


_COLUMNS: Final = TypeAdapter(tuple[FeatureColumn, ...])


def to_plain(value: Any) -> Any:
    """Convert a value of a schema to what JSON holds, without fields that say nothing."""
    if is_dataclass(value):
        told = [(field, getattr(value, field.name)) for field in fields(value)]
        return {field.name: to_plain(of) for field, of in told if of != field.default}
    if hasattr(value, "_asdict"):
        return value._asdict()
    return [to_plain(item) for item in value] if isinstance(value, tuple) else value


def columns_from_json(value: object, where: str) -> tuple[FeatureColumn, ...]:
    """Parse columns; inverts :func:`to_plain`. Errors name ``where`` and the field."""
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
    """Name the columns whose numbers are so large that training suffers, and what to do, in a line;
    return "" if there are none."""
    wide = [
        f"{table}: {column.describe(found.at)} ({_number(found.min)} to {_number(found.max)})"
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


def find_column_difference(
    trained: Mapping[str, tuple[FeatureColumn, ...]], given: Mapping[str, tuple[FeatureColumn, ...]]
) -> str:
    """Describe the first difference between how a run's features and others, by table, were
    encoded; return "" if there is none. Where columns have no names, only numbers are compared."""
    for table in sorted(trained.keys() & given.keys()):
        for difference in filter(None, _compare_columns(given[table], trained[table])):
            return f"{table}: {difference}"
    return ""


def find_class_difference(
    trained: Mapping[str, Iterable[str]], given: Mapping[str, Iterable[str]]
) -> str:
    """Describe the first difference between the names of a run's classes and others, by task;
    return "" if there is none. Classes that the source numbered have no names."""
    for task in sorted(trained.keys() & given.keys()):
        new, old = tuple(given[task]), tuple(trained[task])
        difference = _compare("has the classes", new, old) if new and old else ""
        if difference:
            return f"labels{f' of task {task}' if task else ''}: {difference}"
    return ""


def _compare_columns(
    new: tuple[FeatureColumn, ...], old: tuple[FeatureColumn, ...]
) -> Iterator[str]:
    """Yield what :func:`_compare` tells of two tables' columns, and of each column."""
    if new and old and all(column.name for column in new + old):
        yield _compare("has the columns", *([one.name for one in of] for of in (new, old)))
    else:
        names = ({one.scale for one in of if not one.categories} or {""} for of in (new, old))
        scales = (sorted(name or "nothing" for name in of) for of in names)
        yield _compare("has numbers scaled by", *scales)
    for column, before in zip(new, old, strict=False):
        name = column.describe() if column.name else "its matrix"
        yield _compare(f"{name} has the categories", column.categories, before.categories)
        yield _compare(f"{name} holds lists of", [column.numbers], [before.numbers])
        scaling = ([of.scale or "nothing", *of.offset, *of.divisor] for of in (column, before))
        yield _compare(f"{name} is scaled by", *scaling)
        if column.missing and before.missing:
            yield _compare(f"{name} has missing numbers filled with", column.fill, before.fill)


def _compare(what: str, new: Iterable[object], old: Iterable[object]) -> str:
    """Tell how two lists differ, in a few values from the first that differs; "" = not at all."""
    values = tuple(new), tuple(old)
    if values[0] == values[1]:
        return ""
    pairs = enumerate(zip(*values, strict=False))
    first = next((number for number, pair in pairs if pair[0] != pair[1]), 0)

    def show(values: tuple[object, ...]) -> str:
        start = first if len(values) > _SHOWN else 0
        shown = values[start:][:_SHOWN]
        texts = [f"{v:.6g}" if isinstance(v, float) else str(v) for v in shown]
        after = ["..."] * (len(values) > start + _SHOWN)
        return f"[{', '.join([*['...'] * (start > 0), *texts, *after])}]"

    return f"{what} {show(values[0])}; the run was trained with {show(values[1])}"
