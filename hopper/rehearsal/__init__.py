"""Rehearsal: all ranks of a cluster in one process, to estimate epochs without the cluster.

Ranks are threads that run the engine's own code, one at a time. Each has a clock that counts its
processor time. Messages are counted as on a network, and their time over a link of a given rate is
added to the clocks.
"""
