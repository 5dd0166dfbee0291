"""How long things take: spans of a run, phases of a command, ratios of measurements."""
