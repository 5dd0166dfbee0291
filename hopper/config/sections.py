"""The sections and keys of the configuration; what a key means is written where it is defined.

``[model]`` is in :mod:`hopper.config.model`.
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
"""the engine whose models may be several that differ"""

SAMPLERS = ("node", "full", "layer", "labor", "weighted", "replacement", "temporal")
# By pattern of their names: what makes the draw for a node depend on the nodes around it.
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
"""of roots"""
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
"""by key of ``[train]``, what it names besides classes of one's own"""
DECODERS: Final = ("auto", "dot", "distmult", "complex", "rotate", "mlp", "bilinear")
LOGGERS: Final = ("tensorboard", "mlflow", "wandb")
_SERVER: Final[dict[str, Any]] = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": {"type": "string"}, "minItems": 1},
    ]
}
"""the JSON schema of an entry of ``cluster.servers`` as a file may have it"""


class Data(Section):
    """``[data]``: what to train on."""

    partitioned: str
    """directory that ``hopper partition`` wrote"""
    verify: Literal["quick", "full", "off"] = "quick"
    """what is compared with its checksum: quick = before the run all but features, and features
    while it trains; full = everything before the run; off = nothing
    (docs/reference/partition-directory.md)"""
    features: dict[str, str] = Field(default={})
    """by node type, "package.module:Class": where its features come from instead of the partitions'
    files, in ranks and feature servers (docs/howto/plug-ins.md)"""
    features_options: dict[str, Options] = Field(default={})
    """by node type, keywords of that class's constructor"""

    @model_validator(mode="after")
    def _check(self) -> Data:
        for node_type, name in self.features.items():
            check_form(f"features.{node_type}", name, ())
        for node_type in self.features_options:
            if node_type not in self.features:
                raise ValueError(f"features_options.{node_type}: features does not name the type")
        return self


class Sampler(Section):
    """``[sampler]``: how neighbourhoods are drawn (docs/howto/samplers.md)."""

    kind: str = "node"
    """node = so many neighbours of each node; full = all neighbours of all training nodes, which
    one iteration an epoch trains (train.batch_size is not read); layer = neighbours that are in a
    sample of the whole graph (FastGCN); labor = as node in expectation, with shared neighbours
    (LABOR-0); weighted = as node, in proportion to the weights of edges; replacement = as node,
    with replacement; temporal = as node, among what is there at the root's time
    (docs/howto/times.md); "package.module:Class" = a class of one's own, whose draws may depend on
    nothing but the node"""
    kind_options: Options = Field(default={})
    """keywords of its class's constructor; weighted: unbiased, replace; temporal: pick"""
    fanouts: list[int] = Field(default=[10, 10, 10], min_length=1)
    """in-neighbours per relation, first hop first; -1 = all; one per model layer (kinds "layer" and
    "full" do not read it); where not given, 10 a layer, and 2 for deepgcn and film, whose hops are
    many"""
    layer_sizes: list[int] = Field(default=[])
    """nodes in the sample of each hop, per relation, first hop first; -1 = all; one per model layer
    (only kind "layer" reads it)"""
    device: Literal["cpu", "cuda"] = "cpu"
    """where neighbours are drawn: "cuda" draws the same ones on each rank's GPU by CuPy, with all
    topologies in its memory (kinds "node" and "full")"""

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
        """Whether so many neighbours of a node are drawn as fanouts say, all equally likely."""
        return self.kind in ("node", "full")

    @property
    def draws_parts(self) -> bool:
        """Whether servers that store some of a node's edges each may draw of it together: drawn
        edges count alike."""
        is_biased = self.kind == "weighted" and not self.kind_options.get("unbiased")
        return self.is_node_wise or is_biased or self.kind in ("replacement", "temporal")

    @property
    def leaves_edges_out(self) -> bool:
        """Whether it can draw as if some edges were not there."""
        return self.kind in ("node", "full", "weighted", "replacement", "temporal")

    @property
    def size_key(self) -> str:
        """The key that holds this kind's numbers per hop."""
        return "layer_sizes" if self.kind == "layer" else "fanouts"

    @property
    def sizes(self) -> list[int]:
        """What this kind draws per hop: fanouts, or the sizes of layers."""
        return self.layer_sizes if self.kind == "layer" else self.fanouts


class Train(Section):
    """``[train]``: the run."""

    engine: str = "auto"
    """model_centric | hop | zero_hop | cooperative | raf (graphs divided by relation) | p3
    (features divided by dimension) | naive | neutronstar (full batches) | locality (approximate);
    "auto" tries the exact ones that may be the fastest; "package.module:Class" = a class of one's
    own"""
    engine_options: Options = Field(default={})
    """keywords of its class's constructor"""
    batch_size: Positive = 1024
    """roots per rank and iteration"""
    epochs: Positive = 3
    """how many times all training roots are trained"""
    loss: str = "auto"
    """cross_entropy | binary_cross_entropy | squared_error, of links cross_entropy |
    binary_cross_entropy | margin | bpr, or "package.module:Class"; "auto" = the first of these for
    the graph's kind of labels (docs/howto/plug-ins.md), and cross_entropy of links"""
    loss_options: Options = Field(default={})
    """keywords of its class's constructor; so with all ``_options``. cross_entropy: class_weights;
    binary_cross_entropy: positive_weights; margin: margin"""
    metric: str = "auto"
    """what selects the best model: accuracy | balanced_accuracy | micro_f1 | macro_f1 | roc_auc |
    average_precision | rmse | mae, of links mrr | hits@1 | hits@3 | hits@10, or
    "package.module:Class"; "auto" = accuracy of classes, micro_f1 of several labels, rmse of
    values, mrr of links"""
    metric_options: Options = Field(default={})
    """keywords of the metric's class's constructor"""
    more_metrics: list[str] = Field(default=[])
    """others that are reported beside it, named as ``metric`` is"""
    init_from: str = ""
    """folder of a finished run of the same model, whose parameters and learnable rows this one
    begins with; empty = random ones"""
    optimizer: str = "adam"
    """adam | adamw | sgd, or "package.module:Class"; of all parameters but learnable rows"""
    optimizer_options: Options = Field(default={})
    """adam and adamw: betas, epsilon"""
    learning_rate: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 0.003
    """of all parameters but learnable rows, whose own is learnable.learning_rate"""
    schedule: str = "constant"
    """what multiplies this learning rate and that of learnable rows at every update: constant |
    cosine | step | warmup, or "package.module:Class" """
    schedule_options: Options = Field(default={})
    """cosine: minimum; step: step_size (updates), gamma, minimum; these and warmup: warmup_steps
    (updates) or warmup_fraction (of the run)"""
    weight_decay: Annotated[float, Field(ge=0.0)] = 0.0
    """times the parameter, as the optimiser's class understands it; learnable rows have none"""
    clip_norm: Annotated[float, Field(ge=0.0)] = 0.0
    """bound of the global gradient norm; 0 = off"""
    gradient_norms: bool = False
    """whether epochs and loggers tell the norm of every iteration's gradient, before it is clipped
    (where it is, they do anyway)"""
    patience: NonNegative = 0
    """epochs without a better validation score before the run ends; 0 = off"""
    last_batch: Literal["keep", "drop"] = "keep"
    """what becomes of the roots that are left at the end of an epoch and are fewer than a global
    batch: keep = they are trained too; drop = they wait for another epoch"""
    seed: Seed = 0
    """of initialisation, dropout, shuffling and draws"""
    model_seed: Seed | None = None
    """of initialisation and dropout, where theirs is to differ from ``seed``"""
    dtype: Literal["float32", "float64"] = "float32"
    """of parameters, rows and gradients"""
    autocast: Literal["off", "bfloat16", "float16"] = "off"
    """what matrix products are computed in while training, if not in ``dtype``: an approximation,
    whose sums over edges, losses, gradients and updates are float32; with float16, for GPUs without
    bfloat16, backward passes start from 1,024 times the loss"""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """auto = cuda where there is one"""
    evaluate_every: NonNegative = 1
    """epochs between scores of the validation roots; 0 = none are scored"""
    score_training: bool = False
    """score the training nodes too, whenever validation nodes are scored, and in the same way: over
    full neighbourhoods, without dropout"""
    iterations_per_epoch: NonNegative = 0
    """0 = a whole epoch; n = its first n, for benchmarks"""
    run_dir: str = ""
    """where spans, results and models are written; empty = runs/<time>-<engine>"""
    threads: NonNegative = 0
    """CPU threads a rank; 0 = the cores of the machine divided by its ranks"""
    checkpoint_every: NonNegative = 0
    """iterations between checkpoints; 0 = none"""
    keep_checkpoints: Positive = 2
    """how many stay, the newest ones; those before go once a newer one is written"""
    checkpoint_copy: str = ""
    """folder, or address that fsspec knows (s3://bucket/folder), where checkpoints are copied to"""
    replay: str = ""
    """a run whose decisions (such as merging's) are taken again, epoch by epoch; empty = none"""
    resume: bool | Literal["auto"] = False
    """continue the checkpoint in run_dir; "auto" = if there is one, else start, as a launcher that
    restarts runs by itself wants it (torchrun --max-restarts)"""
    record_gradients: list[NonNegative] = Field(default=[])
    """iterations (counted over the run) whose parameters and gradient rank 0 writes to run_dir"""
    micro_batch: NonNegative = 0
    """roots a forward pass at most, of engines whose ranks train roots by themselves (the others
    take all in one); 0 = four times batch_size, or, of sampler.kind "full", all"""
    loggers: list[str] = Field(default=[])
    """tensorboard | mlflow | wandb, or "package.module:Class": told of every epoch on rank 0,
    besides what a run writes"""
    loggers_options: list[Options] = Field(default=[])
    """one table for each of ``loggers``, in their order; empty = none has options"""
    callbacks: list[str] = Field(default=[])
    """classes of one's own, "package.module:Class", called on every rank as the run goes on"""
    callbacks_options: list[Options] = Field(default=[])
    """one table for each of ``callbacks``, in their order; empty = none has options"""

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
    """``[task]``: what is predicted. Up to ``decoder_options`` it is read of edges, with labels
    (docs/howto/edge-labels.md) or without; what follows, of links (docs/howto/links.md)."""

    kind: Literal["auto", "node", "edge", "link"] = "auto"
    """node = labels of nodes; edge = labels of edges; link = which nodes an edge joins; "auto" =
    what the graph's target says"""
    dim: NonNegative = 0
    """width of the rows that edges are told by, which the model makes of nodes; 0 = model.hidden"""
    decoder: str = "auto"
    """of links dot | distmult | complex | rotate | mlp, of edges with labels mlp | bilinear, or
    "package.module:Class": what is predicted of an edge, from the rows of its ends; "auto" = dot,
    or mlp"""
    decoder_options: Options = Field(default={})
    """rotate: margin; mlp: hidden; bilinear: bases"""
    negatives: Literal["uniform", "joint", "in_batch", "degree"] = "joint"
    """which nodes take the place of a link's ends, to be scored lower: uniform = any, drawn for
    each link; joint = any, the same for all links of a global batch; in_batch = ends of its other
    links; degree = in proportion to the power 3/4 of their training links"""
    num_negatives: Positive = 64
    """how many are drawn for each link and end"""
    fixed_negatives: dict[str, str] = Field(default={})
    """by split, an .npy file [links, ends, k] of original ids that take the places of draws, or, of
    val and test, that links are ranked among instead of all nodes (docs/howto/links.md)"""
    corrupt: Literal["head", "tail", "both"] = "both"
    """the ends that are replaced, in training and in scores"""
    exclude: bool = True
    """whether neighbourhoods are drawn without the edges that a global batch predicts, and those
    that say the same the other way round"""
    filtered: bool = True
    """whether nodes that are known to be linked are left out where a link is ranked"""
    candidates: NonNegative = 0
    """nodes that a link is ranked among in scores, the same for all; 0 = all of the type"""
    weights: dict[str, Annotated[float, Field(ge=0.0, allow_inf_nan=False)]] = Field(default={})
    """by task, where labels are of several (docs/howto/several-tasks.md): times its loss; 1 where
    none is told"""
    metrics: dict[str, list[str]] = Field(default={})
    """by task: what it is scored by, as train.metric; the first of the first task, or of the one
    that selects, selects the best model"""
    selects: str = ""
    """the task that selects the best model; "" = the first"""

    @model_validator(mode="after")
    def _check(self) -> Task:
        check_form("decoder", self.decoder, DECODERS)
        return self


class Hop(Section):
    """``[hop]``: the migrating engine (HopGNN, section 5)."""

    migrate: Literal["model", "gradients"] = "model"
    """what travels around the ring: parameters and accumulated gradients, or gradients only"""
    pregather: bool = True
    """fetch each remote row an iteration needs once, before the first time step"""
    merge: Literal["off", "adaptive"] | NonNegative = "adaptive"
    """time steps to dissolve; "adaptive" compares numbers and takes one more only where it
    is proven faster (docs/inside/merging.md)"""
    merge_selection: Literal["fewest", "random"] = "fewest"
    """which step is dissolved: that with the fewest roots, or one drawn for each model alone"""
    replicas: Literal["synchronous", "independent"] = "synchronous"
    """one model that all ranks train together, or several that differ (docs/howto/sweeps.md)"""
    share_sampling: bool = True
    """true: independent models train the same roots with the same draws, read once for all of them;
    false: each has its own data order and draws"""
    trials: list[dict[str, str | int | float]] = Field(default=[])
    """what differs in each independent model, as {"section.key" = value}; empty = one model per
    rank, with seeds that count up"""

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
    """``[cooperative]``: the engine whose rows of hidden width travel."""

    wire: Literal["exact", "bfloat16", "float16"] = "exact"
    """what rows and their gradients travel in; anything but "exact" is an approximation"""


class Raf(Section):
    """``[raf]``: relation-aggregation-first training (Heta, section 4)."""

    reduce: Literal["scatter", "designated"] = "scatter"
    """who combines the partials of a root: all servers an equal part of the batch, or one server
    all of it (the paper's designated worker)"""


class Learnable(Section):
    """``[learnable]``: input rows that are learned with the model."""

    types: list[str] = Field(default=[])
    """node types that have learnable rows beside their features; those without features always
    have"""
    dim: NonNegative = 0
    """width of a row; 0 = model.hidden"""
    optimizer: Literal["adam", "adagrad", "sgd"] = "adam"
    """its sparse form: an update touches the rows that an iteration read; no weight decay"""
    learning_rate: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 0.01
    """of learnable rows; ``train.schedule`` multiplies it too"""
    tables: Literal["tied", "per_server_table", "per_relation"] = "tied"
    """tied = a node has one row; per_server_table = one in every sub-metatree that meets it, as in
    Heta, so that its rows never leave a server that has the sub-metatree; per_relation = one for
    every relation that reads it, as R-GCN's one-hot vectors have. The last two are other models"""
    deviation: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    """standard deviation of the numbers that rows begin with; 0 = one over the root of ``dim``"""
    l2: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    """times the row, added to the gradient of a row that an iteration has read: a penalty of the
    rows that are read (weight decay would also be of those that are not)"""
    initial: str = ""
    """folder of rows to begin with, ``<type>.npy``, [count, dim] by original id; types without a
    file begin at random"""
    frozen: list[str] = Field(default=[])
    """node types whose rows stay what they began with"""
    storage: Literal["memory", "host", "mmap"] = "memory"
    """where rows and the optimiser's state are: with the model; in host memory, which may be larger
    than a device's; or in mapped files, which may be larger than that. ``[cache]`` holds some of
    the last two where the model is"""
    folder: str = ""
    """of mapped files, on a disk of the rank's machine; empty = train.run_dir"""


class Cache(Section):
    """``[cache]``: rows of other servers, or rows to be copied to a device, and learnable rows in
    host memory or on disk with their optimiser's state, that a rank holds in memory
    (docs/howto/cache.md)."""

    policy: Literal["none", "lru", "hotness", "hotness+penalty", "benefit"] = "none"
    """which rows are kept: those asked for last (lru), or those that presampling visits most, a
    type's share being in proportion to its visits (hotness), or to visits times what a missing byte
    costs (hotness+penalty), or single rows ranked by the latter (benefit)"""
    size: str = "0"
    """room for what each rank holds in memory: "512M", or "10%" of all that could be missing; 4
    bytes a node come on top"""
    memory: Literal["host", "device"] = "host"
    """where feature rows are held: "device" holds them where the rank trains, those of its own
    server too, since these have to be copied there; under every engine"""
    presample_epochs: Positive = 2
    """epochs that are sampled before training to count visits, where no profile is saved"""
    decline: bool = True
    """hold no learnable rows that are updated in place as it is: those on disk where all of them
    fit in the memory that is free, since the kernel keeps them there, and those in host memory
    where the model is there too; False = hold them all the same"""


class Pipeline(Section):
    """``[pipeline]``: what is prepared while an earlier iteration is trained
    (docs/inside/pipeline.md); runs are the same with and without."""

    depth: NonNegative = 25
    """plans that wait to be read at most, besides those of ``lookahead``; 0 = nothing is prepared
    ahead"""
    reads: Positive = 5
    """iterations that wait, with their rows, to be trained at most"""
    memory: str = "1G"
    """room for plans that wait to be read, and as much for iterations that wait to be trained; each
    may go one item beyond"""
    lookahead: NonNegative = 0
    """iterations after the one that is read whose plans decide which rows of other servers are
    kept, to be read from there; 0 = none are"""
    lookahead_memory: str = "1G"
    """room for the rows that ``lookahead`` keeps"""

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


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and value != [] and all(isinstance(e, str) for e in value)


class Cluster(Section):
    """``[cluster]``: the machines."""

    servers: list[str] = Field(default=[], json_schema_extra={"items": _SERVER})
    """"host:port" of each feature server, in order of server, or a list of them where several
    serve a server's part, of which any is asked, and another one when it fails (in one text, with
    commas between them); empty = start them here"""
    ranks_per_server: Positive = 1
    """training processes on each machine"""
    share_gpus: bool = False
    """whether several ranks of a machine may train on one GPU; NCCL refuses that, so messages
    between ranks then go through host memory"""
    timeout_seconds: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 60.0
    """deadline of every wait between processes"""
    start_timeout_seconds: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 120.0
    """deadline for servers and ranks to come up"""
    tls_ca: str = ""
    """PEM certificates that feature servers have to be vouched for by; then rows travel over TLS"""
    tls_certificate: str = ""
    """PEM certificate of this machine: its feature server's, and shown to others by its ranks"""
    tls_key: str = ""
    """PEM key of ``tls_certificate``"""
    token_file: str = ""
    """file with what every request to a feature server has to carry"""
    insecure: bool = False
    """whether machines may talk without TLS, on a network that nobody else can reach"""
    feature_wire: Literal["stored", "float16", "bfloat16", "int8"] = "stored"
    """what float32 rows of features are rounded to on their way between servers, int8 with a scale
    a row: an approximation, whose error summary.json has; "stored" = they travel as they are
    stored"""
    interface: str = ""
    """network interface whose counters are read around every epoch; empty = none"""
    metrics: str = ""
    """HOST:PORT where Prometheus reads metrics of a machine's first rank, the next one's at the
    port after it, and so on; empty = nowhere (docs/howto/watching.md)"""
    log_format: Literal["text", "json"] = "text"
    """of what ranks, the launcher and the servers that it starts tell on stderr: warnings for
    people, or all events, a line of JSON each"""
    server_metrics: str = ""
    """as ``metrics``, for the feature servers that are started here, in order of server"""

    @field_validator("servers", mode="before")
    @classmethod
    def _join_replicas(cls, servers: Any) -> Any:
        if not isinstance(servers, list):
            return servers
        return [",".join(each) if _are_texts(each) else each for each in servers]

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
        # A model at fault is not among the data, and is the error to show.
        if isinstance(values, Mapping) and "model" in info.data:
            model = info.data["model"]
            fanout = 2 if model.name in DEEP_MODELS else 10
            found = {"fanouts": [fanout] * model.layers} | dict(values)
            if found.get("kind") == "full":
                found["fanouts"] = [-1] * model.layers
            return found
        return values

    @property
    def roots_a_pass(self) -> int:
        """Roots of one forward pass at most."""
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
        if sampler.kind == "full" and any(each != -1 for each in sampler.fanouts):
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
