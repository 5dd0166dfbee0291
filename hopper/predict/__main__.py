"""``torchrun ... -m hopper.predict CONFIG.json`` runs one rank of a prediction."""

from hopper.process.quick_imports import quick_imports
from hopper.train.rank_process import follow_parent, run

if __name__ == "__main__":
    # Before anything else: importing torch takes seconds, in which the parent may end.
    follow_parent()
    with quick_imports():
        from hopper.predict.rank import predict_rank

    run(predict_rank, "hopper.predict")
