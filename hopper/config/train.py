"""``[train]``: how the model is trained."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, model_validator

from hopper.config.engines import BASELINES, ENGINES
from hopper.config.section import (
    LocalPath,
    NonNegative,
    Options,
    Positive,
    PositiveNumber,
    Section,
    Seed,
    names,
)

BUILT_INS: Final = {
    "loss": (
        "auto",
        "cross_entropy",
        "binary_cross_entropy",
        "squared_error",
        "margin",
        "bpr",
    ),
    "metric": (
        "auto",
        "accuracy",
        "balanced_accuracy",
        "micro_f1",
        "macro_f1",
        "roc_auc",
        "average_precision",
        "rmse",
        "mae",
        "mrr",
        "hits@1",
        "hits@3",
        "hits@10",
    ),
    "optimizer": ("adam", "adamw", "sgd"),
    "schedule": ("constant", "cosine", "step", "warmup"),
}
"""The built-in values of some keys of ``[train]``. These keys also take a user's class."""
_LOGGERS: Final = ("tensorboard", "mlflow", "wandb")


class Train(Section):
    """``[train]``: How the model is trained."""

    engine: Annotated[str, names("auto", *ENGINES, more=BASELINES)] = "auto"
    """The engine: "model_centric", "hop", "zero_hop", "cooperative", "raf" (graphs divided by
    relation), "locality" (approximate), or your own "package.module:Class". "auto" tries the exact
    engines that may be the fastest."""
    engine_options: Options = Field(default={})
    """Keyword arguments of the engine's class."""
    batch_size: Positive = 1024
    """Roots per rank and iteration."""
    epochs: Positive = 3
    """How many times all training roots are trained."""
    loss: Annotated[str, names(*BUILT_INS["loss"])] = "auto"
    """The loss: "cross_entropy", "binary_cross_entropy", "squared_error", or your own
    "package.module:Class". For links it is "cross_entropy", "binary_cross_entropy", "margin" or
    "bpr". "auto" = the first of these that fits the graph's kind of labels, and "cross_entropy" for
    links. See docs/howto/plug-ins.md."""
    loss_options: Options = Field(default={})
    """Keyword arguments of the loss's class. "cross_entropy" takes class_weights.
    "binary_cross_entropy" takes positive_weights. "margin" takes margin."""
    metric: Annotated[str, names(*BUILT_INS["metric"])] = "auto"
    """The score that selects the best model: "accuracy", "balanced_accuracy", "micro_f1",
    "macro_f1", "roc_auc", "average_precision", "rmse", "mae", or your own "package.module:Class".
    "roc_auc" and "average_precision" need the extra "metrics". For links it is "mrr", "hits@1",
    "hits@3" or "hits@10". "auto" = "accuracy" for classes, "micro_f1" for several labels, "rmse"
    for values, and "mrr" for links."""
    metric_options: Options = Field(default={})
    """Keyword arguments of the metric's class."""
    more_metrics: Annotated[list[str], names(*BUILT_INS["metric"][1:])] = Field(default=[])
    """Other scores to report, named as in ``metric``."""
    init_from: LocalPath = ""
    """The folder of a finished run of the same model. The run begins with its parameters and
    learnable rows. Empty = begin with random ones."""
    optimizer: Annotated[str, names(*BUILT_INS["optimizer"])] = "adam"
    """The optimiser of all parameters except learnable rows: "adam", "adamw", "sgd", or your own
    "package.module:Class"."""
    optimizer_options: Options = Field(default={})
    """Keyword arguments of the optimiser's class. "adam" and "adamw" take betas and epsilon."""
    learning_rate: PositiveNumber = 0.003
    """The learning rate of all parameters except learnable rows. Theirs is
    learnable.learning_rate."""
    schedule: Annotated[str, names(*BUILT_INS["schedule"])] = "constant"
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
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """What to do if a loss or a gradient is not finite (nan or infinity). "stop" ends the run
    before the update, and names epoch, iteration, ranks and the last checkpoint from before. Of
    several trials it ends only the one, which then ranks last. "skip" leaves out the update on
    every rank and goes on; epochs and the summary count such updates. See
    docs/howto/divergence.md."""
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
    GPUs without bfloat16. Its backward passes start from a multiple of the loss, which is halved
    where a gradient overflows (by the rule of torch.amp.GradScaler). That update is left out."""
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
    run_dir: LocalPath = ""
    """The folder for spans, results and models. Empty = runs/<time>-<engine>."""
    script: str = ""
    """A Python script of your own and its arguments, such as "my_script.py --epochs 3", that every
    rank runs in place of Hopper's training. hopper.connect() without arguments finds the graph and
    the servers there. [model] and the other keys of [train] have no effect, but for run_dir and
    threads. See docs/howto/pyg.md."""
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
    replay: LocalPath = ""
    """The folder of an earlier run, whose choices are repeated: the engine of "auto" with its
    options, or the number of merged steps. Empty = none."""
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
    loggers: Annotated[list[str], names(*_LOGGERS)] = Field(default=[])
    """Loggers that rank 0 calls after every epoch: "tensorboard", "mlflow", "wandb", or your own
    "package.module:Class". The run writes its own files besides."""
    loggers_options: list[Options] = Field(default=[])
    """Keyword arguments: one table for each of ``loggers``, in the same order. Empty = none."""
    callbacks: Annotated[list[str], names()] = Field(default=[])
    """Your own classes, as "package.module:Class". Every rank calls them during the run."""
    callbacks_options: list[Options] = Field(default=[])
    """Keyword arguments: one table for each of ``callbacks``, in the same order. Empty = none."""

    @model_validator(mode="after")
    def _check(self) -> Train:
        for key in ("loggers", "callbacks"):
            count, options = len(getattr(self, key)), getattr(self, f"{key}_options")
            if options and len(options) != count:
                raise ValueError(
                    f"{key}_options: expected one table for each of the {count} {key}, or none; "
                    f"got {len(options)}"
                )
        if self.autocast != "off" and self.dtype != "float32":
            raise ValueError(
                f"autocast: {self.autocast!r} takes the place of float32, not of {self.dtype}"
            )
        for key in ("patience", "score_training"):
            if getattr(self, key) and not self.evaluate_every:
                raise ValueError(f"{key}: needs scores, so evaluate_every must not be 0")
        if self.engine in BASELINES:
            raise ValueError(
                f"engine: {self.engine} is a baseline, which only a checkout of the repository "
                f"has; there, use {BASELINES[self.engine]}"
            )
        return self

    @property
    def reports_norms(self) -> bool:
        """Whether the norms of gradients are computed."""
        return self.gradient_norms or self.clip_norm > 0.0

    @property
    def own_seed(self) -> int:
        """The seed of initialisation and dropout."""
        return self.seed if self.model_seed is None else self.model_seed
