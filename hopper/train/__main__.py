"""One rank: ``torchrun ... -m hopper.train CONFIG [--section.key VALUE ...]``."""

from hopper.process.quick_imports import quick_imports
from hopper.train.parent import follow_parent

if __name__ == "__main__":
    # Before anything else: importing torch takes seconds, in which the parent may end.
    follow_parent()
    with quick_imports():
        from hopper.train.rank_main import run

    run()
