"""The reference of the configuration, made from the classes that check it."""

from __future__ import annotations

from collections.abc import Iterator

from docstrings import as_sentence, to_markdown

from hopper.config.model import MODEL_OPTIONS
from hopper.config.reference import Key, describe_section, list_keys, sections


def configuration_reference() -> str:
    """Every section and key: its kind of value, its default, and what it means."""
    keys = list_keys()
    lines: list[str] = []
    for name, section in sections().items():
        lines += ["", f"## `[{name}]`", "", to_markdown(describe_section(section)), ""]
        for key in keys:
            if key.name.startswith(f"{name}."):
                lines += _describe(key)
    return "\n".join(lines)


def _describe(key: Key) -> Iterator[str]:
    """A key, what may stand for it, and its meaning, as an entry of a definition list."""
    value = f"`{key.type}`" if '"' in key.type else key.type
    default = "required" if key.is_required else f"default `{key.default_text}`"
    facts = ", ".join(filter(None, [value, key.bounds, default]))
    option = key.name.removeprefix("model.")
    models = [model for model, options in MODEL_OPTIONS.items() if option in options.model_fields]
    if key.name.startswith("model.") and models:
        facts += f"; of {', '.join(f'`{model}`' for model in models)}"
    yield from (f"`{key.name}`", f": {as_sentence(facts)}")
    if key.description:
        yield from ("", f"  {to_markdown(key.description)}")
    yield ""
