"""What mkdocs must be told about our pages: they are written for a forge's Markdown, and nothing in
them is HTML."""

from __future__ import annotations

import re

FENCED = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)
CODE_OR_TAG = re.compile(r"`[^`]+`|<!--.*?-->|<", re.DOTALL)
LEADS_OUT = re.compile(
    r"\[`?([^]`]+)`?\]\((?:\.\./)+(?:examples/|src/|tests/|benchmarks/|[A-Z]+\.md)[^)]*\)"
)
LIST_AFTER_TEXT = re.compile(r"^(?!  | ?[-*] | ?\d+\. )(.*\S)\n(?=(?:[-*]|1\.) )", re.MULTILINE)


def on_page_markdown(markdown: str, **_: object) -> str:
    """Everything but fenced code, as Python-Markdown has to have it."""
    parts = FENCED.split(markdown)  # text, fenced, text, ...
    return "".join(part if at % 2 else _prose(part) for at, part in enumerate(parts))


def _prose(text: str) -> str:
    """A link to a file of the repository is its name, a list may follow its sentence, and `<` is a
    smaller-than."""
    named = LEADS_OUT.sub(r"`\1`", text)
    listed = LIST_AFTER_TEXT.sub(r"\1\n\n", named)
    return CODE_OR_TAG.sub(lambda found: "&lt;" if found[0] == "<" else found[0], listed)
