"""Averages neighbours once, before training, into the tables that SeHGNN and NARS read."""

from hopper.hetero.precompute.metapaths import MetapathTables
from hopper.hetero.precompute.subsets import SubsetTables
from hopper.hetero.precompute.write_tables import precompute

__all__ = ["MetapathTables", "SubsetTables", "precompute"]
