"""``python graphbolt_dataset.py FOLDER``: GraphBolt prepares an ``OnDiskDataset``."""

from __future__ import annotations

import sys

import dgl.graphbolt

if __name__ == "__main__":
    dgl.graphbolt.OnDiskDataset(sys.argv[1])
