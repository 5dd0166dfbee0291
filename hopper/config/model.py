"""``[model]``: the keys that all models have, and the options of each built-in one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from hopper.config.section import NonNegative, Options, Positive, Section
from hopper.plug_ins import check_form, import_class

DEEP_MODELS: Final = {"deepgcn": 7, "film": 10}
"""layers of the deep models by default (HopGNN 7.1)"""
COMBINATIONS: Final = ("sum", "mean", "mean_of_present")


class SageOptions(Section):
    """Options of ``sage``."""

    aggregator: Literal["mean", "pool", "lstm"] = "mean"
    """what is made of the rows of a node's neighbours (GraphSAGE, section 3.3): their mean, the
    maximum of each number after a layer of its own, or what an LSTM makes of them in turn"""


class RgcnOptions(Section):
    """Options of ``rgcn``."""

    bases: NonNegative = 0
    """matrices that those of all relations are combinations of; 0 = one matrix a relation"""
    diagonal_blocks: NonNegative = 0
    """blocks on the diagonal of a relation's matrix; 0 = a full matrix, which a last layer that is
    as wide as there are classes always has"""
    root_weight: bool = True
    """whether a node's own row of the layer before enters its new one"""
    head: bool = False
    """whether the last layer is as wide as the others, and a linear classifier follows it: with
    many classes less is computed by relation"""
    merge: bool = True
    """whether all relations of a layer are aggregated at once (HiFuse), where the rows of their
    sources are at hand; those with diagonal blocks are not"""
    input_weights: bool = True
    """whether rows go through an input projection and the first layer's matrices; false = they are
    added up as they are, as R-GCN's one-hot vectors pick rows of the matrices: with
    learnable.tables = "per_relation", for graphs without features"""

    @model_validator(mode="after")
    def _check_matrices(self) -> RgcnOptions:
        if self.bases and self.diagonal_blocks:
            raise ValueError("bases: excludes diagonal_blocks; expected one of them")
        return self


class RgatOptions(Section):
    """Options of ``rgat``, which mean what they do for ``rgcn``."""

    head: bool = False
    merge: bool = True


class HgtOptions(Section):
    """Options of ``hgt``, which always has a head; ``merge`` means what it does for ``rgcn``."""

    merge: bool = True


class HgnnOptions(Section):
    """Options of ``hgnn``; ``root_weight`` means what it does for ``rgcn``."""

    aggregate: str = ""
    """"package.module:Class", a :class:`hopper.models.Layer` made from the widths of its input and
    output, which aggregates a relation; hgnn needs one"""
    combine: str = "sum"
    """how relations are combined: sum | mean (of all into a type) | mean_of_present (of those that
    a node has edges of), or "package.module:Class", a
    :class:`hopper.models.combination.Combination` made from the width of rows"""
    root_weight: bool = True

    @model_validator(mode="after")
    def _check_combine(self) -> HgnnOptions:
        check_form("combine", self.combine, COMBINATIONS)
        return self


MODEL_OPTIONS: Final[Mapping[str, type[Section]]] = {
    "sage": SageOptions,
    "rgcn": RgcnOptions,
    "rgat": RgatOptions,
    "hgt": HgtOptions,
    "hgnn": HgnnOptions,
}
"""by name of a model; others have none"""
EDGE_MODELS: Final = ("gcn", "sage", "gat", "rgcn", "rgat", "hgt", "hgnn")
"""that read features of edges; sage with aggregator = "mean" """
ONE_LAYER: Final = ("sehgnn", "nars")
"""models of tables that `hopper precompute` makes, which are one hop away from the roots"""
TYPED_MODELS: Final = ("rgcn", "rgat", "hgt", "hgnn", *ONE_LAYER)


@cache
def _reads_types(name: str) -> bool:
    """Whether a model's class of one's own reads several node types.

    Raises
    ------
    ConfigError: there is no such class.
    """
    return bool(getattr(import_class("model.name", name), "reads_types", False))


class Model(SageOptions, RgcnOptions, RgatOptions, HgtOptions, HgnnOptions):
    """``[model]``: the network. Besides these keys a model takes those of its own options."""

    name: str = "sage"
    """gcn | sage | gat | deepgcn | film for graphs of one type, or "package.module:Class" for a
    module of one's own; rgcn | rgat | hgt for typed graphs, sehgnn | nars for those that ``hopper
    precompute`` makes of them, or hgnn with an ``aggregate`` of one's own, or a class of one's own
    that derives from :class:`hopper.models.relational.HGNN`"""
    name_options: Options = Field(default={})
    """keywords of the constructor, where ``name`` is a class of one's own"""
    layers: Positive = 3
    """also the number of hops; 7 for deepgcn, 10 for film and 1 for sehgnn and nars where it is not
    given"""
    hidden: Positive = 16
    """width of hidden layers (of each head, for gat)"""
    heads: Positive = 1
    """attention heads, of gat, rgat, hgt and sehgnn"""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """share of a layer's numbers that are set to 0 in training"""
    edge_features: bool = False
    """whether features of edges are read, of the relations that have any
    (docs/howto/edge-features.md)"""
    metapaths: list[list[str]] = Field(default=[])
    """typed models: what hops follow, as lists of relations from the target outwards, each a name
    or src/rel/dst, at most ``layers`` long; empty = every relation"""

    @property
    def typed(self) -> bool:
        """Whether it reads several node types and relations."""
        return self.name in TYPED_MODELS or (":" in self.name and _reads_types(self.name))

    @property
    def _may_read_edges(self) -> bool:
        return ":" in self.name or (self.name in EDGE_MODELS and self.aggregator == "mean")

    @property
    def options(self) -> Options:
        """What the model takes besides what all models do, by keyword."""
        if self.name in MODEL_OPTIONS:
            return {key: getattr(self, key) for key in MODEL_OPTIONS[self.name].model_fields}
        return dict(self.name_options)

    @model_validator(mode="after")
    def _check(self) -> Model:
        self._check_options()
        if self.metapaths and not self.typed:
            raise ValueError(f"metapaths: only typed models follow them, not {self.name!r}")
        if self.edge_features and not self._may_read_edges:
            told = self.name + (
                f' with aggregator = "{self.aggregator}"' if self.name == "sage" else ""
            )
            raise ValueError(
                f"edge_features: {told} reads none; expected {', '.join(EDGE_MODELS)}, or a class "
                "of one's own"
            )
        if self.name == "hgnn" and not self.aggregate:
            raise ValueError("aggregate: hgnn needs one; expected package.module:Class")
        if self.name in ONE_LAYER and self.layers != 1:
            raise ValueError(
                f"layers: {self.name} reads tables that are one hop away; expected 1, got "
                f"{self.layers}"
            )
        if self.layers == 1 and not self.head:
            if not self.input_weights:
                raise ValueError(
                    "input_weights: the only layer's rows are the logits; expected at least 2 "
                    "layers, or head = true"
                )
            if self.diagonal_blocks:
                raise ValueError(
                    "diagonal_blocks: the only layer is the last, whose matrices are full"
                )
        return self

    def _check_options(self) -> None:
        """Refuse other models' options."""
        if self.name_options and ":" not in self.name:
            raise ValueError(
                f"name_options: those of a class of one's own; {self.name!r} takes the keys of "
                f"[model]; got {self.name_options}"
            )
        known = {key for kind in MODEL_OPTIONS.values() for key in kind.model_fields}
        own = MODEL_OPTIONS.get(self.name, Section).model_fields
        for key in sorted(known - set(own)):
            if getattr(self, key) != type(self).model_fields[key].default:
                takers = [name for name, kind in MODEL_OPTIONS.items() if key in kind.model_fields]
                raise ValueError(
                    f"{key}: an option of {', '.join(takers)}, not of {self.name!r}; got "
                    f"{getattr(self, key)!r}"
                )

    @model_validator(mode="before")
    @classmethod
    def _default_layers(cls, values: Any) -> Any:
        name = values.get("name") if isinstance(values, Mapping) else None
        layers = DEEP_MODELS | dict.fromkeys(ONE_LAYER, 1)
        if isinstance(name, str) and name in layers:
            return {"layers": layers[name]} | dict(values)
        return values
