"""Graphs with several node types: metatrees and meta-partitioning (Heta, section 5)."""
