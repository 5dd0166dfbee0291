"""One rank: ``torchrun ... -m hopper.train CONFIG [--section.key VALUE ...]``."""

from hopper.process.quick_imports import quick_imports
from hopper.train.rank_process import follow_parent, run

if __name__ == "__main__":
    # Before anything else: importing torch takes seconds, in which the parent may end.
    follow_parent()
    with quick_imports():
        from hopper.train.rank import run_rank

    run(run_rank, "hopper.train")
