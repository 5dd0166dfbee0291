"""``[data]``: the graph to train on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from hopper.config.section import LocalPath, Options, Section, names


class Data(Section):
    """``[data]``: The graph to train on."""

    partitioned: LocalPath
    """The directory that ``hopper partition`` wrote."""
    verify: Literal["quick", "full", "off"] = "quick"
    """Which files are compared with their checksums. "quick" checks features during training, as
    far as time allows, and all other files before the run. "full" checks everything before the run.
    "off" checks nothing.
    See docs/reference/partition-directory.md."""
    features: dict[str, Annotated[str, names()]] = Field(default={})
    """The class that supplies the features of a node type, as {type = "package.module:Class"}.
    Ranks and feature servers read from it instead of the partitions' files. See
    docs/howto/plug-ins.md."""
    features_options: dict[str, Options] = Field(default={})
    """Keyword arguments of the classes in ``features``, by node type."""

    @model_validator(mode="after")
    def _check(self) -> Data:
        for node_type in self.features_options:
            if node_type not in self.features:
                raise ValueError(f"features_options.{node_type}: features does not name the type")
        return self
