"""Engines of papers that Hopper is compared with, as plug-ins (docs/howto/plug-ins.md)."""
