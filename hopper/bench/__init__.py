"""Benchmarks that can be believed: parity first, then engines side by side, round by round."""
