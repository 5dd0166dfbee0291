"""Files: complete or absent, in temporary folders that are removed, on paths of this machine."""
