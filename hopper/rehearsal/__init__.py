"""All ranks of a cluster in one process: what an iteration takes is known before there is one.

Ranks are threads that run the engine's own code, one at a time. Each has a clock of its own that
counts what a processor does for it; messages are counted as on a network, and add what a link of a
given rate takes for them.
"""
