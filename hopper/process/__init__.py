"""One process: its signals, time limits and imports."""
