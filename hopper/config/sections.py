"""A whole configuration: all sections, and what they have to agree on.

The keys of a section are in the module with its name, in :mod:`hopper.config.data` for
``[learnable]`` and ``[cache]``, or in :mod:`hopper.config.engines` for ``[hop]``, ``[cooperative]``
and ``[raf]``. The text below a key says what the key means.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pydantic import (
    Field,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
    model_validator,
)

from hopper.config.cluster import Cluster
from hopper.config.data import Cache, Data, Learnable
from hopper.config.engines import TRIALS_ENGINE, Cooperative, Hop, Raf
from hopper.config.model import DEEP_MODELS, Model
from hopper.config.pipeline import Pipeline
from hopper.config.sampler import Sampler
from hopper.config.section import Section
from hopper.config.task import Task
from hopper.config.train import Train

_NO_BOUND: Final = 2**31 - 1
"""The number of roots that stands for "all of them"."""


class Config(Section):
    """A whole configuration."""

    data: Data
    model: Model = Model()
    sampler: Sampler = Field(default={}, validate_default=True)
    task: Task = Task()
    train: Train = Train()
    hop: Hop = Hop()
    cooperative: Cooperative = Cooperative()
    raf: Raf = Raf()
    learnable: Learnable = Learnable()
    cache: Cache = Cache()
    pipeline: Pipeline = Field(default={}, validate_default=True)
    cluster: Cluster = Cluster()

    @field_validator("sampler", mode="wrap")
    @classmethod
    def _default_fanouts(
        cls, values: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Any:
        # An invalid model is not among the data. Its own error is shown instead.
        model = info.data.get("model")
        if not isinstance(values, Mapping) or model is None:
            return validate(values)
        if values.get("kind") == "full":
            fanout, values = -1, {k: v for k, v in values.items() if k != "fanouts"}
        else:
            fanout = 2 if model.name in DEEP_MODELS else 10
        return Sampler.with_defaults({"fanouts": [fanout] * model.layers}, values, validate)

    @field_validator("pipeline", mode="wrap")
    @classmethod
    def _default_lookahead(
        cls, values: Any, validate: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Any:
        sampler, defaults = info.data.get("sampler"), {}
        if isinstance(values, Mapping) and sampler is not None and sampler.kind == "full":
            defaults = {"lookahead": int(values.get("depth") != 0)}
        return Pipeline.with_defaults(defaults, values, validate)

    def given(self) -> dict[str, Any]:
        """Return the keys that were set, by section. Those that follow from others are left out."""
        return self.model_dump(exclude_unset=True)

    @property
    def roots_a_pass(self) -> int:
        """The most roots of one forward pass."""
        default = _NO_BOUND if self.sampler.kind == "full" else 4 * self.train.batch_size
        return self.train.micro_batch or default

    @model_validator(mode="after")
    def _check(self) -> Config:
        sampler = self.sampler
        if len(sampler.sizes) != self.model.layers:
            what = "number of nodes" if sampler.kind == "layer" else "fanout"
            raise ValueError(
                f"sampler.{sampler.size_key}: expected one {what} per layer "
                f"({self.model.layers}), got {sampler.sizes}"
            )
        if sampler.kind == "full" and any(fanout != -1 for fanout in sampler.fanouts):
            raise ValueError(
                f"sampler.fanouts: kind 'full' takes all neighbours; expected -1 for each layer, "
                f"got {sampler.fanouts}"
            )
        if self.hop.replicas == "independent" and self.train.engine != TRIALS_ENGINE:
            raise ValueError(
                f'hop.replicas: "independent" needs train.engine = "{TRIALS_ENGINE}", got '
                f"{self.train.engine!r}"
            )
        if self.cooperative.wire != "exact" and self.train.engine == "auto":
            raise ValueError(
                f'cooperative.wire: {self.cooperative.wire!r} is an approximation, and "auto" '
                'takes exact engines only; expected "exact", or train.engine = "cooperative"'
            )
        return self
