"""Fault injection: what runs, feature servers and commands have to stand."""
