"""Starting, watching and ending the feature servers and ranks of a run.

``processes`` starts one process, ``supervisor`` all of a machine. ``run`` is a run on this machine,
``host`` one machine's part of a run on several, ``machines`` drives hosts over ssh or Ray.
"""
