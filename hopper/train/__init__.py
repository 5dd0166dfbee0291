"""Training runs: the launcher, the ranks, their loop, and the files that they write.

``torchrun ... -m hopper.train CONFIG`` runs one rank of a cluster. This module imports nothing,
because a rank must tie itself to its parent process before it imports torch. From Python,
:func:`hopper.train` is a function.
"""
