"""What the site needs besides Sphinx: links into the repository."""

from __future__ import annotations

from typing import Any

from repository_files import RepositoryFiles


def setup(app: Any) -> dict[str, bool]:
    """Connect everything to Sphinx's events."""
    files = RepositoryFiles(app)
    app.connect("source-read", files.mark_links)
    app.connect("doctree-resolved", files.resolve_links)
    app.connect("build-finished", files.write_all)
    return {"parallel_read_safe": False, "parallel_write_safe": False}
