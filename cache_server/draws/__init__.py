"""Draws of neighbors, in kernels that servers and ranks share and that need no torch."""
