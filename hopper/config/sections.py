"""The sections and keys of the configuration. The text below a key says what the key means.

Section ``[model]`` is in :mod:`hopper.config.model`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from hopper.config.bounds import is_fanout, parse_size
from hopper.config.model import DEEP_MODELS, Model
from hopper.config.section import NonNegative, Options, Positive, Section, Seed
from hopper.errors import RequestError
from hopper.plug_ins import check_form

ENGINES = (
    *("model_centric", "hop", "zero_hop", "cooperative", "raf", "p3", "naive", "neutronstar"),
    "locality",
)
TRIALS_ENGINE: Final = "hop"
"""The engine that can train several different models at once."""

SAMPLERS = ("node", "full", "layer", "labor", "weighted", "replacement", "temporal")
# By pattern of the name: why the draw for a node depends on the nodes around it.
FRONTIER_DEPENDENT = {
    "p?ladies": "its probabilities are sums over the frontier",
    "as[-_]?gcn": "its probabilities depend on the frontier",
    r"labor[-_]?(\*|i|[1-9]\d*)": "it adapts the probability of a source to all destinations of "
    "the batch (LABOR-0, kind 'labor', does not)",
    r"cluster([-_]?gcn)?": "its edges are those among all the nodes of a batch",
    r"(graph[-_]?)?saint([-_]\w+)?": "its edges are those among all the nodes of a batch",
}
_PORTS: Final = 1 << 16
_NO_BOUND: Final = 2**31 - 1
"""The number of roots that stands for "all of them"."""
BUILT_INS: Final = {
    "loss": (
        *("auto", "cross_entropy", "binary_cross_entropy", "squared_error"),
        *("margin", "bpr"),
    ),
    "metric": (
        *("auto", "accuracy", "balanced_accuracy", "micro_f1", "macro_f1"),
        *("roc_auc", "average_precision", "rmse", "mae"),
        *("mrr", "hits@1", "hits@3", "hits@10"),
    ),
    "optimizer": ("adam", "adamw", "sgd"),
    "schedule": ("constant", "cosine", "step", "warmup"),
}
"""The built-in values of some keys of ``[train]``. These keys also take a user's class."""
DECODERS: Final = ("auto", "dot", "distmult", "complex", "rotate", "mlp", "bilinear")
LOGGERS: Final = ("tensorboard", "mlflow", "wandb")
_SERVER: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
    ]
}
"""The JSON schema of an entry of ``cluster.servers`` in a file."""


class Data(Section):
    """``[data]``: The graph to train on."""

    partitioned: str
    """The directory that ``hopper partition`` wrote."""
    verify: Literal["quick", "full", "off"] = "quick"
    """Which files are compared with their checksums. "quick" checks features during training and
    all other files before the run. "full" checks everything before the run. "off" checks nothing.
    See docs/reference/partition-directory.md."""
    features: dict[str, str] = Field(default={})
    """The class that supplies the features of a node type, as {type = "package.module:Class"}.
    Ranks and feature servers read from it instead of the partitions' files. See
    docs/howto/plug-ins.md."""
    features_options: dict[str, Options] = Field(default={})
    """Keyword arguments of the classes in ``features``, by node type."""

    @model_validator(mode="after")
    def _check(self) -> Data:
        for node_type, name in self.features.items():
            check_form(f"features.{node_type}", name, ())
        for node_type in self.features_options:
            if node_type not in self.features:
                raise ValueError(f"features_options.{node_type}: features does not name the type")
        return self


class Sampler(Section):
    """``[sampler]``: How neighbours are drawn. See docs/howto/samplers.md."""

    kind: str = "node"
    """The sampler. "node" draws ``fanouts`` neighbours of each node. "full" takes all neighbours of
    all training nodes. An epoch is then one iteration, and train.batch_size is not read. "layer"
    takes the neighbours that are in a random sample of the whole graph (FastGCN). "labor" draws on
    average as many as "node", and nodes tend to share them (LABOR-0). "weighted" draws like
    "node", but in proportion to the weights of edges. "replacement" draws like "node", but with
    replacement. "temporal" draws like "node", but only what is there at the root's time (see
    docs/howto/times.md). "package.module:Class" is your own sampler. Its draws may depend on
    nothing but the node."""
    kind_options: Options = Field(default={})
    """Keyword arguments of the sampler's class. "weighted" takes unbiased and replace. "temporal"
    takes pick."""
    fanouts: list[int] = Field(default=[10, 10, 10], min_length=1)
    """How many in-neighbours are drawn per relation, one number for each layer of the model. The
    first number is for the first hop. -1 = all. Kinds "layer" and "full" do not read it. If it is
    not set, it is 10 for each layer, or 2 for the models "deepgcn" and "film", which have many
    layers."""
    layer_sizes: list[int] = Field(default=[])
    """How many nodes the sample of each hop has per relation, one number for each layer of the
    model. The first number is for the first hop. -1 = all. Only kind "layer" reads it."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where neighbours are drawn. "cuda" draws the same neighbours as "cpu" on each rank's GPU. It
    needs CuPy, room for the topology in the GPU's memory, and kind "node" or "full"."""

    @model_validator(mode="after")
    def _check(self) -> Sampler:
        if self.device == "cuda" and not self.is_node_wise:
            raise ValueError(f"device: 'cuda' draws kinds 'node' and 'full', got {self.kind!r}")
        for key in ("fanouts", "layer_sizes"):
            sizes = getattr(self, key)
            if not all(map(is_fanout, sizes)):
                raise ValueError(f"{key}: expected positive numbers below 2**31 or -1, got {sizes}")
        for pattern, reason in FRONTIER_DEPENDENT.items():
            if re.fullmatch(pattern, self.kind, re.IGNORECASE):
                raise ValueError(
                    f"kind: {self.kind!r} is refused: {reason}, so a batch would not be the union "
                    f"of its micrographs and engines would train on different graphs; expected "
                    f"{', '.join(SAMPLERS)}"
                )
        check_form("kind", self.kind, SAMPLERS)
        return self

    @property
    def is_node_wise(self) -> bool:
        """Whether each node draws its fanout of neighbours, all with the same probability."""
        return self.kind in ("node", "full")

    @property
    def draws_parts(self) -> bool:
        """Whether servers that each store some edges of a node may draw for it together.

        They may if all drawn edges count alike.
        """
        is_biased = self.kind == "weighted" and not self.kind_options.get("unbiased")
        return self.is_node_wise or is_biased or self.kind in ("replacement", "temporal")

    @property
    def leaves_edges_out(self) -> bool:
        """Whether the sampler can draw as if some edges did not exist."""
        return self.kind in ("node", "full", "weighted", "replacement", "temporal")

    @property
    def size_key(self) -> str:
        """The key with this kind's numbers per hop."""
        return "layer_sizes" if self.kind == "layer" else "fanouts"

    @property
    def sizes(self) -> list[int]:
        """This kind's numbers per hop: fanouts, or the sizes of layers."""
        return self.layer_sizes if self.kind == "layer" else self.fanouts


class Train(Section):
    """``[train]``: How the model is trained."""

    engine: str = "auto"
    """The engine: "model_centric", "hop", "zero_hop", "cooperative", "raf" (graphs divided by
    relation), "p3" (features divided by dimension), "naive", "neutronstar" (full batches),
    "locality" (approximate), or your own "package.module:Class". "auto" tries the exact engines
    that may be the fastest."""
    engine_options: Options = Field(default={})
    """Keyword arguments of the engine's class."""
    batch_size: Positive = 1024
    """Roots per rank and iteration."""
    epochs: Positive = 3
    """How many times all training roots are trained."""
    loss: str = "auto"
    """The loss: "cross_entropy", "binary_cross_entropy", "squared_error", or your own
    "package.module:Class". For links it is "cross_entropy", "binary_cross_entropy", "margin" or
    "bpr". "auto" = the first of these that fits the graph's kind of labels, and "cross_entropy" for
    links. See docs/howto/plug-ins.md."""
    loss_options: Options = Field(default={})
    """Keyword arguments of the loss's class. "cross_entropy" takes class_weights.
    "binary_cross_entropy" takes positive_weights. "margin" takes margin."""
    metric: str = "auto"
    """The score that selects the best model: "accuracy", "balanced_accuracy", "micro_f1",
    "macro_f1", "roc_auc", "average_precision", "rmse", "mae", or your own "package.module:Class".
    For links it is "mrr", "hits@1", "hits@3" or "hits@10". "auto" = "accuracy" for classes,
    "micro_f1" for several labels, "rmse" for values, and "mrr" for links."""
    metric_options: Options = Field(default={})
    """Keyword arguments of the metric's class."""
    more_metrics: list[str] = Field(default=[])
    """Other scores to report, named as in ``metric``."""
    init_from: str = ""
    """The folder of a finished run of the same model. The run begins with its parameters and
    learnable rows. Empty = begin with random ones."""
    optimizer: str = "adam"
    """The optimiser of all parameters except learnable rows: "adam", "adamw", "sgd", or your own
    "package.module:Class"."""
    optimizer_options: Options = Field(default={})
    """Keyword arguments of the optimiser's class. "adam" and "adamw" take betas and epsilon."""
    learning_rate: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 0.003
    """The learning rate of all parameters except learnable rows. Theirs is
    learnable.learning_rate."""
    schedule: str = "constant"
    """How learning rates change at every update: "constant", "cosine", "step", "warmup", or your
    own "package.module:Class". It multiplies ``learning_rate`` and learnable.learning_rate."""
    schedule_options: Options = Field(default={})
    """Keyword arguments of the schedule's class. "cosine" takes minimum. "step" takes step_size (in
    updates), gamma and minimum. "cosine", "step" and "warmup" take warmup_steps (in updates) or
    warmup_fraction (of the run)."""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """The factor of weight decay, as the optimiser's class defines it. Learnable rows have no
    weight decay."""
    clip_norm: Annotated[float, Field(ge=0.0)] = 0.0
    """The largest norm of the global gradient. Larger gradients are scaled down. 0 = no bound."""
    gradient_norms: bool = False
    """Whether epochs and loggers report the norm of each iteration's gradient before clipping. If
    ``clip_norm`` is set, they always do."""
    patience: NonNegative = 0
    """How many epochs may pass without a better validation score before the run ends. 0 = no early
    end."""
    last_batch: Literal["keep", "drop"] = "keep"
    """What to do with the last roots of an epoch if they are fewer than a global batch. "keep"
    trains them too. "drop" leaves them for another epoch."""
    seed: Seed = 0
    """The seed of initialisation, dropout, shuffling and draws."""
    model_seed: Seed | None = None
    """Another seed for initialisation and dropout. Not set = they use ``seed``."""
    dtype: Literal["float32", "float64"] = "float32"
    """The format of parameters, rows and gradients."""
    autocast: Literal["off", "bfloat16", "float16"] = "off"
    """The format of matrix products in training. "off" = that of ``dtype``. The others are
    approximations. Sums over edges, losses, gradients and updates stay in float32. "float16" is for
    GPUs without bfloat16. Its backward passes start from 1,024 times the loss."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """Where the model is trained. "auto" = "cuda" if there is a GPU, else "cpu"."""
    evaluate_every: NonNegative = 1
    """How many epochs lie between two scores of the validation roots. 0 = no scores."""
    score_training: bool = False
    """Whether to score the training nodes whenever the validation nodes are scored. Both scores use
    all neighbours and no dropout."""
    iterations_per_epoch: NonNegative = 0
    """How many iterations of each epoch are trained, beginning with the first. It is meant for
    benchmarks. 0 = all."""
    run_dir: str = ""
    """The folder for spans, results and models. Empty = runs/<time>-<engine>."""
    threads: NonNegative = 0
    """CPU threads of a rank. 0 = the machine's cores divided by its ranks."""
    checkpoint_every: NonNegative = 0
    """How many iterations lie between two checkpoints. 0 = no checkpoints."""
    keep_checkpoints: Positive = 2
    """How many checkpoints are kept, the newest ones. An older one is deleted after a newer one is
    written."""
    checkpoint_copy: str = ""
    """A folder or an fsspec address (s3://bucket/folder) to which checkpoints are copied. Empty =
    no copies."""
    replay: str = ""
    """The folder of an earlier run. Its decisions, such as those of merging, are repeated epoch by
    epoch. Empty = none."""
    resume: bool | Literal["auto"] = False
    """Whether to continue from the checkpoint in ``run_dir``. "auto" continues if there is one, and
    starts from the beginning otherwise. Use "auto" with launchers that restart runs (torchrun
    --max-restarts)."""
    record_gradients: list[NonNegative] = Field(default=[])
    """Iterations of which rank 0 writes parameters and gradient to ``run_dir``. They are counted
    over the whole run."""
    micro_batch: NonNegative = 0
    """The most roots of one forward pass. Only engines whose ranks train roots by themselves read
    it. The others train all roots in one pass. 0 = four times ``batch_size``, or all roots if
    sampler.kind is "full"."""
    loggers: list[str] = Field(default=[])
    """Loggers that rank 0 calls after every epoch: "tensorboard", "mlflow", "wandb", or your own
    "package.module:Class". The run writes its own files besides."""
    loggers_options: list[Options] = Field(default=[])
    """Keyword arguments: one table for each of ``loggers``, in the same order. Empty = none."""
    callbacks: list[str] = Field(default=[])
    """Your own classes, as "package.module:Class". Every rank calls them during the run."""
    callbacks_options: list[Options] = Field(default=[])
    """Keyword arguments: one table for each of ``callbacks``, in the same order. Empty = none."""

    @model_validator(mode="after")
    def _check(self) -> Train:
        for key, names in BUILT_INS.items():
            check_form(key, getattr(self, key), names)
        for name in self.loggers:
            check_form("loggers", name, LOGGERS)
        for name in self.more_metrics:
            check_form("more_metrics", name, BUILT_INS["metric"][1:])
        for name in self.callbacks:
            check_form("callbacks", name, ())
        for key in ("loggers", "callbacks"):
            names, options = getattr(self, key), getattr(self, f"{key}_options")
            if options and len(options) != len(names):
                raise ValueError(
                    f"{key}_options: expected one table for each of the {len(names)} {key}, or "
                    f"none; got {len(options)}"
                )
        if self.autocast != "off" and self.dtype != "float32":
            raise ValueError(
                f"autocast: {self.autocast!r} takes the place of float32, not of {self.dtype}"
            )
        if self.patience and not self.evaluate_every:
            raise ValueError("patience: needs scores, so evaluate_every must not be 0")
        if self.score_training and not self.evaluate_every:
            raise ValueError("score_training: needs scores, so evaluate_every must not be 0")
        check_form("engine", self.engine, ("auto", *ENGINES))
        return self

    @property
    def own_seed(self) -> int:
        """The seed of initialisation and dropout."""
        return self.seed if self.model_seed is None else self.model_seed


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
    decoder: str = "auto"
    """The decoder. It computes the prediction of an edge from the rows of its ends. For links it is
    "dot", "distmult", "complex", "rotate" or "mlp". For edges with labels it is "mlp" or
    "bilinear". It may be your own "package.module:Class". "auto" = "dot" for links, and "mlp" for
    edges with labels."""
    decoder_options: Options = Field(default={})
    """Keyword arguments of the decoder's class. "rotate" takes margin. "mlp" takes hidden.
    "bilinear" takes bases."""
    negatives: Literal["uniform", "joint", "in_batch", "degree"] = "joint"
    """Which nodes replace an end of a link. The model learns to score them lower. "uniform" draws
    any nodes for each link. "joint" draws any nodes once for all links of a global batch.
    "in_batch" takes ends of the global batch's other links. "degree" draws nodes in proportion to
    the number of their training links to the power 3/4."""
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
    weights: dict[str, Annotated[float, Field(ge=0.0, allow_inf_nan=False)]] = Field(default={})
    """The factor of a task's loss, by name of the task. It is 1 for tasks without an entry. See
    docs/howto/several-tasks.md."""
    metrics: dict[str, list[str]] = Field(default={})
    """The scores of a task, by name of the task. They are named as in train.metric. The first score
    of the task in ``selects`` selects the best model."""
    selects: str = ""
    """The task that selects the best model. Empty = the first one."""

    @model_validator(mode="after")
    def _check(self) -> Task:
        check_form("decoder", self.decoder, DECODERS)
        return self


class Hop(Section):
    """``[hop]``: The engine ``hop``, whose models travel (HopGNN, section 5)."""

    migrate: Literal["model", "gradients"] = "model"
    """What travels around the ring of ranks. "model" sends parameters and the gradients so far.
    "gradients" sends only the gradients."""
    pregather: bool = True
    """Whether each remote row of an iteration is fetched once, before the first time step."""
    merge: Literal["off", "adaptive"] | NonNegative = "adaptive"
    """How many time steps are dissolved. "adaptive" compares numbers and dissolves one more step
    only where that is proven faster. "off" dissolves none. See docs/inside/merging.md."""
    merge_selection: Literal["fewest", "random"] = "fewest"
    """Which time step is dissolved. "fewest" takes the step with the fewest roots. "random" draws
    one for each model."""
    replicas: Literal["synchronous", "independent"] = "synchronous"
    """How many models are trained. "synchronous" trains one model on all ranks together.
    "independent" trains several different models at once. See docs/howto/sweeps.md."""
    share_sampling: bool = True
    """Whether independent models share roots and draws, so that rows are read once for all. false =
    each model has its own order of roots and its own draws."""
    trials: list[dict[str, str | int | float]] = Field(default=[])
    """The keys that differ in each independent model, as {"section.key" = value}. Empty = one model
    per rank, with seeds that count up."""

    @model_validator(mode="after")
    def _check(self) -> Hop:
        if self.replicas == "synchronous":
            if self.trials:
                raise ValueError('trials: they need replicas = "independent"')
            return self
        if self.migrate == "gradients":
            raise ValueError(
                'migrate: "gradients" is not enough for replicas = "independent": a model that is '
                'like no other must itself meet its groups; expected "model"'
            )
        if isinstance(self.merge, int) and self.merge > 0:
            raise ValueError(
                f"merge: {self.merge} time steps cannot be dissolved with replicas = "
                '"independent": all models share what a rank has read, and merging would give each '
                'of them other roots there; expected "off" (which "adaptive" means here)'
            )
        return self


class Cooperative(Section):
    """``[cooperative]``: The engine ``cooperative``, whose hidden rows travel."""

    wire: Literal["exact", "bfloat16", "float16"] = "exact"
    """The format in which hidden rows and their gradients travel. "exact" sends them as they are.
    The others are approximations."""


class Raf(Section):
    """``[raf]``: The engine ``raf``, which aggregates by relation first (Heta, section 4)."""

    reduce: Literal["scatter", "designated"] = "scatter"
    """Who combines the partials of the roots. "scatter" gives each server an equal part of the
    batch. "designated" gives one server the whole batch (the paper's designated worker)."""


class Learnable(Section):
    """``[learnable]``: Input rows that are learned with the model."""

    types: list[str] = Field(default=[])
    """Node types that have learnable rows beside their features. Types without features always have
    learnable rows."""
    dim: NonNegative = 0
    """Width of a learnable row. 0 = model.hidden."""
    optimizer: Literal["adam", "adagrad", "sgd"] = "adam"
    """The optimiser of learnable rows, in its sparse form. It updates only the rows that an
    iteration has read, without weight decay."""
    learning_rate: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 0.01
    """The learning rate of learnable rows. train.schedule multiplies it too."""
    tables: Literal["tied", "per_server_table", "per_relation"] = "tied"
    """How many learnable rows a node has. "tied" = one. "per_server_table" = one in each
    sub-metatree that reads it (Heta), so that its rows never leave a server with the sub-metatree.
    "per_relation" = one for each relation that reads it, like the one-hot vectors of R-GCN. The
    last two are other models than "tied"."""
    deviation: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    """Standard deviation of the first values of rows. 0 = one over the square root of ``dim``."""
    l2: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    """The factor of an L2 penalty. This number times the row is added to the gradient of each row
    that an iteration has read. Weight decay would change all other rows too."""
    initial: str = ""
    """The folder of the first values of rows: files <type>.npy of shape [count, dim], by original
    id. Rows of types without a file begin with random values. Empty = all rows do."""
    frozen: list[str] = Field(default=[])
    """Node types whose rows keep their first values."""
    storage: Literal["memory", "host", "mmap"] = "memory"
    """Where the rows and their optimiser's state are stored. "memory" stores them with the model.
    "host" stores them in host memory, which may be larger than the memory of a device. "mmap"
    stores them in mapped files, which may be larger than host memory. For "host" and "mmap",
    ``[cache]`` can keep some of the rows where the model is."""
    folder: str = ""
    """The folder of the mapped files, on a disk of the rank's machine. Empty = train.run_dir."""


class Cache(Section):
    """``[cache]``: Rows that a rank keeps in memory to read them less often. They are rows of other
    servers, rows that are copied to a device, and learnable rows whose storage is host memory or
    disk. See docs/howto/cache.md."""

    policy: Literal["none", "lru", "hotness", "hotness+penalty", "benefit"] = "none"
    """Which rows are kept. "none" keeps none. "lru" keeps the rows that were read last. The other
    policies count visits by sampling before training. "hotness" keeps the most visited rows of each
    type, and gives each type room in proportion to its visits. "hotness+penalty" gives room in
    proportion to visits times the cost of a missing byte. "benefit" ranks single rows of all types
    by visits times this cost."""
    size: str = "0"
    """Memory for the cached rows of each rank, such as "512M", or "10%" of all rows that could be
    missing. The cache needs 4 more bytes for each node."""
    memory: Literal["host", "device"] = "host"
    """Where feature rows are kept. "device" keeps them where the rank trains. It keeps rows of the
    rank's own server too, since they must be copied to the device. It works under every engine."""
    presample_epochs: Positive = 2
    """How many epochs are sampled before training to count visits. It is not read if a profile is
    saved."""
    decline: bool = True
    """Whether to keep no learnable rows where a cache costs more than it saves. That is so for rows
    on disk if all of them fit in free memory, since the kernel keeps them there. It is also so for
    rows in host memory if the model is there too. false = keep them all the same."""


class Pipeline(Section):
    """``[pipeline]``: What is prepared while an earlier iteration is trained. It does not change
    the results of a run. See docs/inside/pipeline.md."""

    depth: NonNegative = 25
    """The most plans that may wait to be read, not counting those of ``lookahead``. 0 = nothing is
    prepared ahead."""
    reads: Positive = 5
    """The most iterations that may wait with their rows to be trained."""
    memory: str = "1G"
    """Memory for plans that wait to be read. Iterations that wait to be trained may use as much
    again. Each of the two may exceed it by one item."""
    lookahead: NonNegative = 0
    """How many iterations to look ahead when rows of other servers are read. A row that one of
    these iterations reads again is kept until then. 0 = no row is kept."""
    lookahead_memory: str = "1G"
    """Memory for the rows that ``lookahead`` keeps."""

    @field_validator("memory", "lookahead_memory")
    @classmethod
    def _check_memory(cls, memory: str) -> str:
        try:
            parse_size(memory)
        except RequestError as error:
            raise ValueError(str(error)) from error
        return memory

    @model_validator(mode="after")
    def _check(self) -> Pipeline:
        if self.lookahead and not self.depth:
            raise ValueError(
                f"lookahead: {self.lookahead} iterations cannot be foreseen where none is planned "
                "ahead; expected 0, or depth above 0"
            )
        return self

    @property
    def nbytes(self) -> int:
        """Bytes of ``memory``."""
        return parse_size(self.memory)

    @property
    def lookahead_nbytes(self) -> int:
        """Bytes of ``lookahead_memory``."""
        return parse_size(self.lookahead_memory)


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(item, str) for item in value)


class Cluster(Section):
    """``[cluster]``: The machines."""

    servers: list[str] = Field(default=[], json_schema_extra={"items": _SERVER})
    """The addresses of the feature servers, as "host:port", in order of server. An entry may be a
    list of addresses that serve the same part, or one text with commas between them. A rank asks
    one of them, and another one if it fails. Empty = the run starts feature servers on this
    machine."""
    ranks_per_server: Positive = 1
    """Training processes on each machine."""
    share_gpus: bool = False
    """Whether several ranks of a machine may train on one GPU. NCCL does not allow that, so
    messages between ranks then go through host memory."""
    timeout_seconds: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 60.0
    """How long one process waits for another, in seconds."""
    start_timeout_seconds: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 120.0
    """How long servers and ranks may take to start, in seconds."""
    reconnects: NonNegative = 3
    """How many times ranks meet again within a run after connections between them broke, if all of
    them still live. They continue from the last finished iteration, which every rank keeps in
    memory. 0 = a broken connection ends the run, and no iteration is kept."""
    tls_ca: str = ""
    """A PEM file of trusted certificates. One of them must have signed the certificate of each
    feature server. If it is set, rows travel over TLS."""
    tls_certificate: str = ""
    """A PEM file with the certificate of this machine. Its feature server uses it, and its ranks
    show it to other servers."""
    tls_key: str = ""
    """A PEM file with the key of ``tls_certificate``."""
    token_file: str = ""
    """A file with the token that every request to a feature server must carry."""
    insecure: bool = False
    """Whether machines may talk without TLS. Use it only on a network that nobody else can
    reach."""
    feature_wire: Literal["stored", "float16", "bfloat16", "int8"] = "stored"
    """The format in which float32 feature rows travel between servers. "stored" sends them as they
    are stored. The others round the numbers, so they are approximations. "int8" has one scale for
    each row. summary.json reports the error."""
    interface: str = ""
    """The network interface whose counters are read before and after each epoch. Empty = none."""
    metrics: str = ""
    """The HOST:PORT where Prometheus reads the metrics of a machine's first rank. Each further rank
    uses the next port. Empty = no metrics. See docs/howto/watching.md."""
    log_format: Literal["text", "json"] = "text"
    """The format of the messages on stderr of ranks, the launcher and the servers that it starts.
    "text" prints warnings for people. "json" prints all events, one line of JSON each."""
    server_metrics: str = ""
    """The HOST:PORT where Prometheus reads the metrics of the first feature server that the run
    starts. Each further server uses the next port. Empty = no metrics."""

    @field_validator("servers", mode="before")
    @classmethod
    def _join_replicas(cls, servers: Any) -> Any:
        if not isinstance(servers, list):
            return servers
        return [",".join(entry) if _is_list_of_texts(entry) else entry for entry in servers]

    @model_validator(mode="after")
    def _check(self) -> Cluster:
        for key in ("metrics", "server_metrics"):
            address = getattr(self, key)
            host, _, port = address.rpartition(":")
            if address and not (host and port.isdecimal() and 0 < int(port) < _PORTS):
                raise ValueError(
                    f"{key}: expected HOST:PORT with a port from 1 to 65535, got {address!r}"
                )
        return self


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
    pipeline: Pipeline = Pipeline()
    cluster: Cluster = Cluster()

    @field_validator("sampler", mode="before")
    @classmethod
    def _default_fanouts(cls, values: Any, info: ValidationInfo) -> Any:
        # An invalid model is not among the data. Its own error is shown instead.
        if isinstance(values, Mapping) and "model" in info.data:
            model = info.data["model"]
            fanout = 2 if model.name in DEEP_MODELS else 10
            sampler = {"fanouts": [fanout] * model.layers} | dict(values)
            if sampler.get("kind") == "full":
                sampler["fanouts"] = [-1] * model.layers
            return sampler
        return values

    @property
    def roots_a_pass(self) -> int:
        """The most roots of one forward pass."""
        if self.sampler.kind == "full":
            return self.train.micro_batch or _NO_BOUND
        return self.train.micro_batch or 4 * self.train.batch_size

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
