"""The base class of all sections of a configuration, and types of their keys."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from hopper.config.bounds import COUNTS, SEEDS
from hopper.files.local_path import EXPECTED, is_address

Positive = Annotated[int, Field(gt=0, lt=COUNTS)]
NonNegative = Annotated[int, Field(ge=0, lt=COUNTS)]
Seed = Annotated[int, Field(ge=0, lt=SEEDS)]
Options = dict[str, Any]


def _check_local(path: str) -> str:
    """Return a path, unless it is an address."""
    if is_address(path):
        raise PydanticCustomError("address", EXPECTED)
    return path


LocalPath = Annotated[str, AfterValidator(_check_local)]


class Section(BaseModel):
    """Keys with their values. They are checked once and cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
