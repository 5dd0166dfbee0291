"""The experiments of papers as commands: grids of A/B cells, their JSON, picture and page."""
