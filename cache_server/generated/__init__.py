"""Stubs made from ``cache_server/proto`` by ``scripts/generate_stubs.py``; never edited by hand."""
