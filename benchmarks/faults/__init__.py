"""Fault injection: what runs, feature servers and files have to stand (``hopper bench faults``)."""
