"""The run: its launcher, its ranks, their loop, and what they write.

``torchrun ... -m hopper.train CONFIG`` runs one rank of a cluster. Nothing is imported here,
because a rank does something before it imports torch. From Python, :func:`hopper.train` is a
function.
"""
