"""``python -m benchmarks.paper``."""

import sys

from benchmarks.paper.command import main

sys.exit(main())
