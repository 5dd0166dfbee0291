"""Predictions of a trained model for all nodes of a graph, or some: ``hopper predict``."""
