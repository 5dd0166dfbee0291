"""The base class of all sections of a configuration, and types of their keys."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from cache_server import limits
from hopper.config.bounds import COUNTS, SEEDS, is_fanout
from hopper.config.plug_ins import describe_choices, is_named
from hopper.files.addresses import EXPECTED, is_address

Positive = Annotated[int, Field(gt=0, lt=COUNTS)]
NonNegative = Annotated[int, Field(ge=0, lt=COUNTS)]
Seed = Annotated[int, Field(ge=0, lt=SEEDS)]
Number = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
PositiveNumber = Annotated[float, Field(gt=0.0, allow_inf_nan=False)]
Options = dict[str, Any]


def accept(is_right: Callable[[Any], bool], expected: str) -> AfterValidator:
    """Refuse values of a key for which a function is false, and say what was ``expected``."""

    def check(value: Any) -> Any:
        if not is_right(value):
            raise PydanticCustomError("refused", "{expected}", {"expected": expected})
        return value

    return AfterValidator(check)


def names(*built_ins: str, more: Collection[str] = ()) -> AfterValidator:
    """Accept names of built-ins, and classes of the user's own as "package.module:Class". The value
    of the key is a name or a list of names.

    Parameters
    ----------
    more: names that are accepted here, since a check of the section refuses them.
    """
    expected = f"expected {describe_choices(built_ins)}"

    def are_right(value: Any) -> bool:
        given = [value] if isinstance(value, str) else value
        return all(name in more or is_named(name, built_ins) for name in given)

    return accept(are_right, expected)


LocalPath = Annotated[str, accept(lambda path: not is_address(path), EXPECTED)]
Size = Annotated[
    str,
    accept(
        lambda text: limits.parse_size(text) is not None,
        "expected a number and a unit (K, M, G, T)",
    ),
]
Fanouts = Annotated[
    list[int],
    accept(lambda sizes: all(map(is_fanout, sizes)), "expected positive numbers below 2**31 or -1"),
]


class Section(BaseModel):
    """Keys with their values. They are checked once and cannot be changed."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", frozen=True, strict=True)

    @classmethod
    def with_defaults(
        cls, defaults: Mapping[str, Any], values: Any, validate: Callable[[Any], Self]
    ) -> Self:
        """Validate values with other defaults than the class has. These keys count as not set, so
        that they follow what they depend on if that is changed."""
        if not isinstance(values, Mapping):
            return validate(values)
        section = validate(dict(defaults) | dict(values))
        section.model_fields_set.difference_update(defaults.keys() - values.keys())
        return section
