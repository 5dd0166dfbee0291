"""``[task]``: what the model predicts."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field

from hopper.config.section import NonNegative, Number, Options, Positive, Section, names

NEGATIVES: Final = ("uniform", "joint", "in_batch", "degree")
_DECODERS: Final = ("auto", "dot", "distmult", "complex", "rotate", "mlp", "bilinear")


class Task(Section):
    """``[task]``: What the model predicts. Keys from ``dim`` to ``decoder_options`` are for edges,
    with labels (docs/howto/edge-labels.md) or without (docs/howto/links.md). Keys from
    ``negatives`` to ``candidates`` are for links. The other keys are for several tasks
    (docs/howto/several-tasks.md)."""

    kind: Literal["auto", "node", "edge", "link"] = "auto"
    """What is predicted. "node" = labels of nodes. "edge" = labels of edges. "link" = which nodes
    an edge joins. "auto" = what the graph's target says."""
    dim: NonNegative = 0
    """Width of the rows that the model computes for nodes and the decoder reads. 0 =
    model.hidden."""
    decoder: Annotated[str, names(*_DECODERS)] = "auto"
    """The decoder. It computes the prediction of an edge from the rows of its ends. For links it is
    "dot", "distmult", "complex", "rotate" or "mlp". For edges with labels it is "mlp" or
    "bilinear". It may be your own "package.module:Class". "auto" = "dot" for links, and "mlp" for
    edges with labels."""
    decoder_options: Options = Field(default={})
    """Keyword arguments of the decoder's class. "rotate" takes margin. "mlp" takes hidden.
    "bilinear" takes bases."""
    negatives: Annotated[str, names(*NEGATIVES)] = "joint"
    """Which nodes replace an end of a link. The model learns to score them lower. "uniform" draws
    any nodes for each link. "joint" draws any nodes once for all links of a global batch.
    "in_batch" takes ends of the global batch's other links. "degree" draws nodes in proportion to
    the number of their training links to the power 3/4. "package.module:Class" draws them itself
    (docs/howto/plug-ins.md)."""
    negatives_options: Options = Field(default={})
    """Keyword arguments of your own class of negatives."""
    num_negatives: Positive = 64
    """How many negatives are drawn for each link and each end that is replaced."""
    fixed_negatives: dict[str, str] = Field(default={})
    """Files of negatives, by split: .npy files of shape [links, ends, k] with original ids. Those
    of "train" replace the drawn ones. A link of "val" or "test" is ranked among those of its file
    instead of all nodes. See docs/howto/links.md."""
    corrupt: Literal["head", "tail", "both"] = "both"
    """Which ends of a link are replaced, in training and in scores."""
    exclude: bool = True
    """Whether the draws of neighbours leave out the edges that the global batch predicts. They also
    leave out edges that say the same, such as reversed ones."""
    filtered: bool = True
    """Whether the ranking of a link leaves out nodes that are known to be linked."""
    candidates: NonNegative = 0
    """How many nodes a link is ranked among in scores. They are the same for all links. 0 = all
    nodes of the type."""
    weights: dict[str, Number] = Field(default={})
    """The factor of a task's loss, by name of the task. It is 1 for tasks without an entry. See
    docs/howto/several-tasks.md."""
    metrics: dict[str, list[str]] = Field(default={})
    """The scores of a task, by name of the task. They are named as in train.metric. The first score
    of the task in ``selects`` selects the best model."""
    selects: str = ""
    """The task that selects the best model. Empty = the first one."""
