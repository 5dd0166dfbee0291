"""The ranks of a run: their process group, its interface and store, and the bytes they send."""
