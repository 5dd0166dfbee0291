"""``torchrun ... -m hopper.predict CONFIG.json`` runs one rank of a prediction."""

from hopper.process.quick_imports import quick_imports
from hopper.train.parent import follow_parent

if __name__ == "__main__":
    # Before anything else: importing torch takes seconds, in which the parent may end.
    follow_parent()
    with quick_imports():
        from hopper.predict.rank import predict_rank
        from hopper.train.rank_main import run

    run(predict_rank, "hopper.predict")
