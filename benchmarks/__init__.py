"""What was measured and how: scripts, the papers' experiments, and their results."""
