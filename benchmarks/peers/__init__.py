"""Other systems, trained on the same graph, partitions and emulated hosts as Hopper's engines.

What runs in a system's own environment (``distdgl_*.py``) imports nothing of Hopper's.
"""
