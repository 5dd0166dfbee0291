"""Layers of typed models on sampled batches, Hopper's and PyTorch Geometric's, side by side."""
