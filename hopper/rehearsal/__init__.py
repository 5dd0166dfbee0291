"""Rehearsal: all ranks of a cluster as threads of one process.

They run the engine's own code, and tensors move in memory. For ``hopper plan`` ranks run one at a
time, with clocks that count processor seconds and the time of messages over links of a given rate.
"""
