"""``[model]``: the keys that all models have, and the options of each built-in model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ModelWrapValidatorHandler, model_validator

from hopper.config.plug_ins import import_class
from hopper.config.section import NonNegative, Options, Positive, Section, names

DEEP_MODELS: Final = {"deepgcn": 7, "film": 10}
"""The default number of layers of the deep models (HopGNN 7.1)."""
TIMELESS_MODELS: Final = ("gcn", "deepgcn")
"""Models that weigh neighbors by out-degrees, which are not known at a root's time."""
COMBINATIONS: Final = ("sum", "mean", "mean_of_present")


class SageOptions(Section):
    """Options of ``sage``."""

    aggregator: Literal["mean", "pool", "lstm"] = "mean"
    """How the rows of a node's neighbours are combined (GraphSAGE, section 3.3). "mean" takes their
    mean. "pool" sends each row through a layer and takes the maximum of each number. "lstm" sends
    the rows through an LSTM one after the other."""


class RgcnOptions(Section):
    """Options of ``rgcn``."""

    bases: NonNegative = 0
    """How many basis matrices all relations share. The matrix of a relation is a combination of
    them. 0 = each relation has its own matrix."""
    diagonal_blocks: NonNegative = 0
    """How many blocks the matrix of a relation has on its diagonal. 0 = a full matrix. A last layer
    that is as wide as there are classes always has full matrices."""
    root_weight: bool = True
    """Whether a node's own row of the layer before is part of its new row."""
    head: bool = False
    """Whether a linear classifier follows the last layer, which is then as wide as the others. It
    saves work by relation if there are many classes."""
    input_weights: bool = True
    """Whether rows go through an input projection and the matrices of the first layer. false = rows
    are added up as they are, as R-GCN's one-hot vectors pick rows of the matrices. Use false with
    learnable.tables = "per_relation", for graphs without features."""

    @model_validator(mode="after")
    def _check_matrices(self) -> RgcnOptions:
        if self.bases and self.diagonal_blocks:
            raise ValueError("bases: excludes diagonal_blocks; expected one of them")
        return self


class RgatOptions(Section):
    """Options of ``rgat``. They mean the same as for ``rgcn``."""

    head: bool = False


class HgnnOptions(Section):
    """Options of ``hgnn``. ``root_weight`` means the same as for ``rgcn``."""

    aggregate: str = ""
    """The class that aggregates a relation, as "package.module:Class". It is a
    :class:`hopper.models.Layer`, made from the widths of its input and output. "hgnn" needs one."""
    combine: Annotated[str, names(*COMBINATIONS)] = "sum"
    """How relations are combined. "sum" adds them up. "mean" takes the mean over all relations into
    a type. "mean_of_present" takes the mean over the relations of which a node has edges. Your own
    "package.module:Class" is a :class:`hopper.models.combination.Combination`, made from the width
    of rows."""
    root_weight: bool = True


MODEL_OPTIONS: Final[Mapping[str, type[Section]]] = {
    "sage": SageOptions,
    "rgcn": RgcnOptions,
    "rgat": RgatOptions,
    "hgnn": HgnnOptions,
}
"""The options of a model, by its name. Models that are not here have none."""
EDGE_MODELS: Final = ("gcn", "sage", "gat", "rgcn", "rgat", "hgt", "hgnn")
"""Models that read features of edges. ``sage`` reads them only with aggregator = "mean"."""
ONE_LAYER: Final = ("sehgnn", "nars")
"""Models of tables of ``hopper dataset precompute``, all of which are one hop from the roots."""
TYPED_MODELS: Final = ("rgcn", "rgat", "hgt", "hgnn", *ONE_LAYER)


class Model(SageOptions, RgcnOptions, RgatOptions, HgnnOptions):
    """``[model]``: The network. A model takes the common keys and its own options."""

    name: str = "sage"
    """The model. For graphs of one node type it is "gcn", "sage", "gat", "deepgcn", "film" or your
    own module, as "package.module:Class". For typed graphs it is "rgcn", "rgat", "hgt", "hgnn" with
    your own ``aggregate``, or your own class that derives from
    :class:`hopper.models.relational.HGNN`. For the graphs that ``hopper dataset precompute`` makes
    it is "sehgnn" or "nars"."""
    name_options: Options = Field(default={})
    """Keyword arguments of your own class in ``name``."""
    layers: Positive = 3
    """The number of layers, which is also the number of hops. If it is not set, it is 7 for
    "deepgcn", 10 for "film", and 1 for "sehgnn" and "nars"."""
    hidden: Positive = 16
    """Width of hidden layers. For "gat" it is the width of each head."""
    heads: Positive = 1
    """The number of attention heads of "gat", "rgat", "hgt" and "sehgnn"."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """The share of a layer's numbers that are set to 0 in training."""
    edge_features: bool = False
    """Whether the model reads features of edges, for the relations that have any. See
    docs/howto/edge-features.md."""
    metapaths: list[list[str]] = Field(default=[])
    """The paths that hops of a typed model follow. A path is a list of at most ``layers`` relations
    from the target outwards, each a name or src/rel/dst. Empty = hops follow every relation."""

    @property
    def typed(self) -> bool:
        """Return whether the model reads several node types and relations."""
        if ":" not in self.name:
            return self.name in TYPED_MODELS
        return bool(getattr(import_class("model.name", self.name), "reads_types", False))

    @property
    def options(self) -> Options:
        """Keyword arguments that this model takes besides the common ones."""
        if self.name in MODEL_OPTIONS:
            return {key: getattr(self, key) for key in MODEL_OPTIONS[self.name].model_fields}
        return dict(self.name_options)

    @model_validator(mode="after")
    def _check(self) -> Model:
        self._check_options()
        if self.metapaths and not self.typed:
            raise ValueError(f"metapaths: only typed models follow them, not {self.name!r}")
        reads_edges = self.name in EDGE_MODELS and self.aggregator == "mean"
        if self.edge_features and not reads_edges and ":" not in self.name:
            model = self.name + (
                f' with aggregator = "{self.aggregator}"' if self.name == "sage" else ""
            )
            raise ValueError(
                f"edge_features: {model} reads none; expected {', '.join(EDGE_MODELS)}, or a class "
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
        if self.name_options and ":" not in self.name:
            raise ValueError(
                f"name_options: those of a class of one's own; {self.name!r} takes the keys of "
                f"[model]; got {self.name_options}"
            )
        keys = {key for options in MODEL_OPTIONS.values() for key in options.model_fields}
        allowed = MODEL_OPTIONS.get(self.name, Section).model_fields
        for key in sorted(keys - set(allowed)):
            if getattr(self, key) != type(self).model_fields[key].default:
                takers = [
                    name for name, options in MODEL_OPTIONS.items() if key in options.model_fields
                ]
                raise ValueError(
                    f"{key}: an option of {', '.join(takers)}, not of {self.name!r}; got "
                    f"{getattr(self, key)!r}"
                )

    @model_validator(mode="wrap")
    @classmethod
    def _default_layers(cls, values: Any, validate: ModelWrapValidatorHandler[Model]) -> Model:
        name = values.get("name") if isinstance(values, Mapping) else None
        layers = DEEP_MODELS | dict.fromkeys(ONE_LAYER, 1)
        defaults = {"layers": layers[name]} if isinstance(name, str) and name in layers else {}
        return cls.with_defaults(defaults, values, validate)
