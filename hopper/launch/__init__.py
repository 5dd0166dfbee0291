"""Starting, watching and ending the feature servers and ranks of a run.

``supervisor`` does it for what one process starts. ``run`` is a run on this machine, ``host`` one
machine's part of a run on several, ``machines`` drives the hosts of a run over ssh or Ray.
"""
