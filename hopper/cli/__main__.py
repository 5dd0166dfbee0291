"""``python -m hopper.cli``."""

import sys

from hopper.cli import main

if __name__ == "__main__":
    sys.exit(main())
