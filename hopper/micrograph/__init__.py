"""Samples neighbours of roots: micrographs, subgraphs, and blocks of layers (HopGNN, section 4)."""
