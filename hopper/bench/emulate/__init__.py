"""Emulates P hosts on one machine: network namespaces with rate-limited links, and cgroups."""
