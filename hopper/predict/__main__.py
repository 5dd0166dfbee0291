"""``torchrun ... -m hopper.predict CONFIG.json`` runs one rank of a prediction."""

from __future__ import annotations

from hopper.predict.rank import predict_rank
from hopper.train.parent import follow_parent
from hopper.train.rank_main import run

if __name__ == "__main__":
    follow_parent()
    run(predict_rank, "hopper.predict")
