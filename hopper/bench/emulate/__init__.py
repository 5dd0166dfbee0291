"""P hosts on one machine: network namespaces on rate-limited links, bounded by cgroups."""
