"""The base class of all sections of a configuration, and types of their keys."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from hopper.config.bounds import COUNTS, SEEDS

Positive = Annotated[int, Field(gt=0, lt=COUNTS)]
NonNegative = Annotated[int, Field(ge=0, lt=COUNTS)]
Seed = Annotated[int, Field(ge=0, lt=SEEDS)]
Options = dict[str, Any]


class Section(BaseModel):
    """Keys with their values. They are checked once and cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)
