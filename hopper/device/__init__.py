"""The device of a rank: its choice, copies and arrays on it, and the threads of kernels."""
