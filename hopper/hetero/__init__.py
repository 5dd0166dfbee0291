"""Typed graphs: metagraph, metatree, and meta-partitioning (Heta, section 5)."""
