"""Rehearsal: all ranks of a cluster as threads of one process.

They run the engine's own code, and tensors move in memory. For ``hopper plan`` their clocks count
processor seconds and the time of messages over links of a given rate.
"""
