"""A LightningModule trains on the splits of a configuration."""

from typing import Any

import pytest
import torch

import hopper

pytest.importorskip("torch_geometric")
pytest.importorskip("pytorch_lightning")

import pytorch_lightning as lightning
from torch_geometric.nn import GraphSAGE

from hopper.pyg.lightning import DataModule


class Sage(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = GraphSAGE(10, 16, num_layers=2, out_channels=6)
        self.correct: list[bool] = []

    def training_step(self, batch: Any) -> torch.Tensor:
        out = self.model(batch.x, batch.edge_index)[: batch.batch_size]
        return torch.nn.functional.cross_entropy(out, batch.y, reduction="sum") * batch.loss_scale

    def validation_step(self, batch: Any) -> None:
        out = self.model(batch.x, batch.edge_index)[: batch.batch_size]
        self.correct += (out.argmax(1) == batch.y).tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.02)


@pytest.mark.filterwarnings("ignore")
def test_a_trainer_of_lightning_trains_on_the_splits(parts):
    config = hopper.make_config(
        {
            "data": {"partitioned": str(parts)},
            "model": {"layers": 2},
            "sampler": {"fanouts": [5, 5]},
            "train": {"batch_size": 20},
        }
    )
    torch.manual_seed(2)
    model = Sage()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=15,
        num_sanity_val_steps=0,
        check_val_every_n_epoch=15,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, datamodule=DataModule(config))
    assert trainer.global_step == 15 * 5
    assert len(model.correct) == 60
    assert sum(model.correct) / 60 > 0.5


@pytest.mark.parametrize(
    ("sampler", "text"),
    [
        ({"kind": "labor"}, r"sampler.kind: .*'labor'"),
        ({"kind": "weighted", "kind_options": {"replace": True}}, "sampler.kind_options: .*True"),
        ({"dependence": 8}, "sampler.dependence: expected 1 here, given 8"),
    ],
)
def test_what_the_loader_has_not_is_refused(sampler, text, tmp_path):
    values = {"data": {"partitioned": str(tmp_path)}, "sampler": sampler}
    with pytest.raises(hopper.RequestError, match=text):
        DataModule(hopper.make_config(values))
