"""Models by name, and how to build and initialise them."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import torch
from torch import nn

from hopper.config.model import MODEL_OPTIONS
from hopper.config.plug_ins import describe_choices, import_class
from hopper.config.section import Section
from hopper.errors import ConfigError
from hopper.graph.schema import Relation
from hopper.models.film import FiLM
from hopper.models.gat import GAT
from hopper.models.gcn import GCN
from hopper.models.hgt import HGT
from hopper.models.nars import NARS
from hopper.models.own_aggregation import COMBINATIONS, OwnAggregation
from hopper.models.relational import HGNN, NO_EDGES
from hopper.models.residual import DeepGCN
from hopper.models.rgat import RGAT
from hopper.models.rgcn import RGCN
from hopper.models.sage import GraphSAGE
from hopper.models.sehgnn import SeHGNN
from hopper.ops.counter_mask import drop_threshold

_Model = TypeVar("_Model", bound=nn.Module)

MODELS: Final[dict[str, type[nn.Module]]] = {
    "gcn": GCN,
    "sage": GraphSAGE,
    "gat": GAT,
    "deepgcn": DeepGCN,
    "film": FiLM,
}
TYPED_MODELS: Final[dict[str, Callable[..., HGNN]]] = {
    "rgcn": RGCN,
    "rgat": RGAT,
    "hgt": HGT,
    "hgnn": OwnAggregation,
    "sehgnn": SeHGNN,
    "nars": NARS,
}


def build_model(
    name: str,
    *,
    in_dim: int,
    out_dim: int,
    layers: int,
    hidden: int,
    heads: int = 1,
    dropout: float = 0.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    edge_dim: int = 0,
    **options: Any,
) -> nn.Module:
    """Build a model of one node type, initialised alike in every process.

    The initialisation depends only on the seed. Weights are drawn in float32 and then converted, so
    a float64 model begins like the float32 one. The global random state does not change.

    Parameters
    ----------
    name: "gcn", "sage", "gat", "deepgcn", "film", or "package.module:Class". The class is an
        ``nn.Module`` that is called with the keywords in_dim, out_dim, layers, hidden, heads and
        dropout. Its ``forward`` takes (blocks, x) as :class:`hopper.models.gnn.GNN` does.
    dropout: the probability, in [0, 1).
    seed: the seed of the initialisation.
    edge_dim: the width of features of edges, which the class takes as a keyword; 0 = the model
        reads none.
    options: further keywords for the class.

    Raises
    ------
    ConfigError: a value is out of range, or there is no such model. The message names the key.
    """
    sizes = {"in_dim": in_dim, "out_dim": out_dim}
    sizes |= {"layers": layers, "hidden": hidden, "heads": heads}
    _check_sizes(sizes)
    drop_threshold(dropout)
    if name in TYPED_MODELS:
        raise ConfigError(f"model.name: {name} reads typed graphs; see build_typed_model")
    if name not in MODELS and ":" not in name:
        names = f"{', '.join([*MODELS, *TYPED_MODELS])} or package.module:Class"
        raise ConfigError(f"model.name: expected {names}; given {name!r}")
    model_class = MODELS.get(name) or _import_module("model.name", name)
    with _initialisation(seed):
        keywords = sizes | {"dropout": dropout} | ({"edge_dim": edge_dim} if edge_dim else {})
        model = _call(model_class, name, keywords, options)
    return model.to(dtype)


def build_typed_model(
    name: str,
    *,
    target: str,
    inputs: Mapping[str, int],
    reads: Sequence[tuple[Sequence[Relation], Sequence[str]]],
    out_dim: int,
    hidden: int,
    heads: int = 1,
    dropout: float = 0.0,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    edges: Mapping[Relation, int] = NO_EDGES,
    **more: Any,
) -> HGNN:
    """Build a model of a typed graph, initialised as in :func:`build_model`.

    Parameters
    ----------
    name: one of :data:`TYPED_MODELS`, or "package.module:Class".
    target: the type of the roots.
    inputs: by type, the width of its features.
    reads: by layer, in order of computation, the relations that it aggregates and the types of its
        destinations.
    edges: by relation whose edges' features are read, the width of these. If there are any, the
        class takes them as a keyword.
    more: the model's options, which :data:`hopper.config.model.MODEL_OPTIONS` documents, or further
        keywords for the class.

    Raises
    ------
    ConfigError: a value is out of range, or the model does not take it. The message names the key.
    """
    model_class: Callable[..., HGNN]
    if ":" in name:
        model_class = import_class("model.name", name, HGNN)
    elif name not in TYPED_MODELS:
        raise ConfigError(f"model.name: expected {describe_choices(TYPED_MODELS)}; given {name!r}")
    else:
        model_class = TYPED_MODELS[name]
        options = MODEL_OPTIONS.get(name, Section).model_fields
        refused = [key for key in more if key not in options]
        if refused:
            raise ConfigError(f"model.{refused[0]}: {name} does not take it")
    widths = {f"features of {node_type}": width for node_type, width in inputs.items()}
    sizes = {"layers": len(reads), "hidden": hidden, "heads": heads, "out_dim": out_dim}
    _check_sizes(sizes | widths)
    drop_threshold(dropout)
    if "aggregate" in more and name in TYPED_MODELS:
        more["aggregate"] = _import_module("model.aggregate", more["aggregate"])
        if more["combine"] not in COMBINATIONS:
            more["combine"] = _import_module("model.combine", more["combine"])
    keywords = {"target": target, "inputs": inputs, "reads": reads, "out_dim": out_dim}
    keywords |= {"hidden": hidden, "heads": heads, "dropout": dropout}
    keywords |= {"edges": edges} if edges else {}
    with _initialisation(seed):
        model = _call(model_class, name, keywords, more)
    return model.to(dtype)


def _call(
    model_class: Callable[..., _Model],
    name: str,
    keywords: Mapping[str, Any],
    options: Mapping[str, Any],
) -> _Model:
    """Call a model's class with the keywords of every model and with its own options."""
    try:
        return model_class(**keywords, **options)
    except TypeError as error:
        if ":" not in name:
            raise
        raise ConfigError(
            f"model.name: {name} cannot be called with the keywords "
            f"{', '.join([*keywords, *options])}: {error}"
        ) from error


def _check_sizes(sizes: Mapping[str, int]) -> None:
    for key, value in sizes.items():
        if value < 1:
            raise ConfigError(f"model.{key}: expected at least 1; given {value}")


@contextlib.contextmanager
def _initialisation(seed: int) -> Iterator[None]:
    default = torch.get_default_dtype()
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # torch.manual_seed would reseed CUDA's generators too, and nothing restores those.
        torch.default_generator.manual_seed(seed)
        torch.set_default_dtype(torch.float32)
        try:
            yield
        finally:
            torch.set_default_dtype(default)


def _import_module(key: str, name: str) -> type[nn.Module]:
    return import_class(key, name, nn.Module, "subclass of torch.nn.Module")
