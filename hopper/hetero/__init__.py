"""Graphs with several node types: metagraph, metatree, and meta-partitioning (Heta, section 5)."""
