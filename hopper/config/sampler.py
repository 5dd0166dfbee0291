"""``[sampler]``: how neighbors are drawn, and which kinds of sampling are refused."""

from __future__ import annotations

import re
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from hopper.config.section import Fanouts, Options, Section, names

_SAMPLERS: Final = ("node", "full", "layer", "labor", "weighted", "replacement", "temporal")
_FRONTIER_DEPENDENT: Final = {
    "p?ladies": "its probabilities are sums over the frontier",
    "as[-_]?gcn": "its probabilities depend on the frontier",
    r"labor[-_]?(\*|i|[1-9]\d*)": "it adapts the probability of a source to all destinations of "
    "the batch (LABOR-0, kind 'labor', does not)",
    r"cluster([-_]?gcn)?": "its edges are those among all the nodes of a batch",
    r"(graph[-_]?)?saint([-_]\w+)?": "its edges are those among all the nodes of a batch",
}
"""By pattern of a kind's name: why its draw for a node depends on the nodes around it."""


def _refuse_frontiers(kind: str) -> str:
    for pattern, reason in _FRONTIER_DEPENDENT.items():
        if re.fullmatch(pattern, kind, re.IGNORECASE):
            text = (
                f"{kind!r} is refused: {reason}, so a batch would not be the union of its "
                "micrographs and engines would train on different graphs; expected "
                f"{', '.join(_SAMPLERS)}"
            )
            raise PydanticCustomError("frontier", "{text}", {"text": text})
    return kind


class Sampler(Section):
    """``[sampler]``: How neighbors are drawn. See docs/howto/samplers.md."""

    kind: Annotated[str, AfterValidator(_refuse_frontiers), names("auto", *_SAMPLERS)] = "auto"
    """The sampler. "node" draws ``fanouts`` neighbors of each node. "full" takes all neighbors of
    all training nodes. An epoch is then one iteration, and train.batch_size is not read. "layer"
    takes the neighbors that are in a random sample of the whole graph (FastGCN). "labor" draws on
    average as many as "node", and nodes tend to share them (LABOR-0). "weighted" draws like
    "node", but in proportion to the weights of edges. "replacement" draws like "node", but with
    replacement. "temporal" draws like "node", but only what is there at the root's time (see
    docs/howto/times.md). "auto" is "temporal" where roots have times, and edges or their sources
    too, and "node" elsewhere: also for models that cannot read times, and on "cuda".
    "package.module:Class" is your own sampler. Its draws may depend on nothing but the node."""
    kind_options: Options = Field(default={})
    """Keyword arguments of the sampler's class. "weighted" takes unbiased and replace. "temporal"
    takes pick."""
    fanouts: Fanouts = Field(default=[10, 10, 10], min_length=1)
    """How many in-neighbors are drawn per relation, one number for each layer of the model. The
    first number is for the first hop. -1 = all. Kinds "layer" and "full" do not read it. If it is
    not set, it is 10 for each layer, or 2 for the models "deepgcn" and "film", which have many
    layers."""
    layer_sizes: Fanouts = Field(default=[])
    """How many nodes the sample of each hop has per relation, one number for each layer of the
    model. The first number is for the first hop. -1 = all. Only kind "layer" reads it."""
    expansion: Literal["each_hop", "once"] = "each_hop"
    """Whether a node that is reached again at a later hop of a batch draws anew. "each_hop" draws
    other neighbors at each hop. "once" draws the same neighbors at all hops, as PyG expands a node
    once. It needs the same fanout at all hops."""
    dependence: int = Field(default=1, ge=1, lt=1 << 31)
    """For how many iterations the neighbors of a node stay the same. Nodes change at different
    iterations, one of ``dependence`` of them at each, so consecutive batches share most of their
    draws, and caches more of their rows. Every draw has the same distribution as with 1, which
    draws anew in each iteration. An epoch begins with draws of its own."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where neighbors are drawn. "cuda" draws the same neighbors as "cpu" on each rank's GPU. It
    needs CuPy, room for the topology in the GPU's memory, and kind "node" or "full"."""

    @model_validator(mode="after")
    def _check(self) -> Sampler:
        if self.device == "cuda" and not self.is_node_wise:
            raise ValueError(f"device: 'cuda' draws kinds 'node' and 'full', got {self.kind!r}")
        is_recent = self.kind == "temporal" and self.kind_options.get("pick") == "recent"
        if self.expansion == "once" and len(set(self.sizes)) > 1:
            raise ValueError(
                f"expansion: 'once' draws the same neighbors at every hop; expected equal numbers "
                f"in {self.size_key}, got {self.sizes}"
            )
        for key, default in {"expansion": "each_hop", "dependence": 1}.items():
            value = getattr(self, key)
            if value != default and (self.kind == "full" or is_recent):
                how = "takes all neighbors" if self.kind == "full" else "takes the latest edges"
                raise ValueError(
                    f"{key}: kind {self.kind!r} {how}, which no draw decides; expected "
                    f"{default!r}, got {value!r}"
                )
        return self

    @property
    def is_node_wise(self) -> bool:
        """Return whether each node draws its fanout of neighbors, all equally likely."""
        return self.kind in ("auto", "node", "full")

    @property
    def draws_parts(self) -> bool:
        """Return whether servers that each store some edges of a node may draw for it together.

        They may if all drawn edges count alike.
        """
        is_biased = self.kind == "weighted" and not self.kind_options.get("unbiased")
        return self.is_node_wise or is_biased or self.kind in ("replacement", "temporal")

    @property
    def leaves_edges_out(self) -> bool:
        """Return whether the sampler can draw as if some edges did not exist."""
        return self.is_node_wise or self.kind in ("weighted", "replacement", "temporal")

    @property
    def size_key(self) -> str:
        """The key with this kind's numbers per hop."""
        return "layer_sizes" if self.kind == "layer" else "fanouts"

    @property
    def sizes(self) -> list[int]:
        """This kind's numbers per hop: fanouts, or the sizes of layers."""
        return self.layer_sizes if self.kind == "layer" else self.fanouts
