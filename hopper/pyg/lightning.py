"""A data module for PyTorch Lightning, made of a configuration."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from pytorch_lightning import LightningDataModule

from hopper.config import Config, load_config
from hopper.errors import RequestError
from hopper.pipeline.connected import ConnectedGraph, connect_as
from hopper.pyg.node_loader import NeighborLoader

_ARGUMENTS: Final[dict[str, dict[str, Any]]] = {
    "auto": {},
    "node": {},
    "weighted": {"weight_attr": "weight"},
    "replacement": {"replace": True},
    "temporal": {"time_attr": "time"},
}
"""arguments of :class:`NeighborLoader` by kind of sampler"""


class DataModule(LightningDataModule):
    """The splits of a configuration's graph as loaders for a ``pytorch_lightning.Trainer``.

    It reads ``data.partitioned``, ``[cluster]``, ``[cache]``, ``[sampler]``, ``[pipeline]``,
    ``train.batch_size`` and ``train.seed``. Losses are summed and multiplied by
    ``batch.loss_scale``, as under :class:`hopper.pyg.NeighborLoader`.

    Parameters
    ----------
    config: a configuration, or the path of its file.
    overrides: arguments that replace keys, such as ``["--train.batch_size", "64"]``.

    Raises
    ------
    ConfigError, RequestError: names the key, what was expected and what was given.
    """

    def __init__(
        self, config: Config | str | os.PathLike[str], overrides: Sequence[str] = ()
    ) -> None:
        super().__init__()
        self.config = config if isinstance(config, Config) else load_config(config, overrides)
        if self.config.sampler.kind not in _ARGUMENTS:
            raise RequestError(
                f"sampler.kind: expected {', '.join(_ARGUMENTS)}, given "
                f"{self.config.sampler.kind!r}"
            )
        for key, default in (("kind_options", {}), ("dependence", 1)):
            value = getattr(self.config.sampler, key)
            if value != default:
                raise RequestError(f"sampler.{key}: expected {default!r} here, given {value!r}")
        self._graph: ConnectedGraph | None = None
        self._loaders: list[NeighborLoader] = []

    def setup(self, stage: str) -> None:
        """Connect, after the trainer has made its process group."""
        if self._graph is None:
            self._graph = connect_as(self.config)

    def teardown(self, stage: str) -> None:
        """End the threads and close the connections."""
        for loader in self._loaders:
            loader.close()
        if self._graph is not None:
            self._graph.close()
        self._loaders, self._graph = [], None

    def train_dataloader(self) -> NeighborLoader:
        """Return the batches of the split "train", in another order every epoch."""
        return self._loader("train", shuffle=True)

    def val_dataloader(self) -> NeighborLoader:
        """Return the batches of the split "val"."""
        return self._loader("val")

    def test_dataloader(self) -> NeighborLoader:
        """Return the batches of the split "test"."""
        return self._loader("test")

    def _loader(self, split: str, *, shuffle: bool = False) -> NeighborLoader:
        config = self.config
        assert self._graph is not None
        target = self._graph.graph.schema.target_type()
        loader = NeighborLoader(
            self._graph,
            config.sampler.fanouts,
            (target, split),
            batch_size=config.train.batch_size,
            shuffle=shuffle,
            drop_last=shuffle and config.train.last_batch == "drop",
            seed=config.train.seed,
            pipeline=config.pipeline.model_dump(),
            **_ARGUMENTS[config.sampler.kind],
        )
        self._loaders.append(loader)
        return loader
