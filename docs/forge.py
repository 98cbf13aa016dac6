"""An extension of Python-Markdown: our pages are written for a forge's Markdown, and nothing in
them is HTML but the outputs of the notebook.

Both MkDocs and Zensical load it by the name in mkdocs.yml, with this folder in PYTHONPATH.
"""

from __future__ import annotations

import re

from markdown import Extension, Markdown
from markdown.preprocessors import Preprocessor

FENCED = re.compile(r"(^ *```.*?^ *```)", re.MULTILINE | re.DOTALL)
RAW = r"<!-- raw -->.*?<!-- end -->"
"""HTML that docs/notebook.py took from a cell."""
CODE_OR_TAG = re.compile(rf"`[^`]+`|{RAW}|<!--.*?-->|<", re.DOTALL)
LEADS_OUT = re.compile(
    r"\[`?([^]`]+)`?\]\((?:\.\./)+(?:examples/|src/|tests/|benchmarks/|[A-Z]+\.md)[^)]*\)"
)
LIST_AFTER_TEXT = re.compile(r"^(?!  | ?[-*] | ?\d+\. )(.*\S)\n(?=(?:[-*]|1\.) )", re.MULTILINE)
AFTER_WHITESPACE, BEFORE_FENCES = 30, 25
"""Priorities of Python-Markdown's own preprocessors: the larger runs first."""


class ForgeMarkdown(Preprocessor):
    """Everything but fenced code, as Python-Markdown has to have it."""

    def run(self, lines: list[str]) -> list[str]:
        """The lines of a page."""
        parts = FENCED.split("\n".join(lines))  # text, fenced, text, ...
        return "".join(part if at % 2 else prose(part) for at, part in enumerate(parts)).split("\n")


class Forge(Extension):
    """What mkdocs.yml names."""

    def extendMarkdown(self, md: Markdown) -> None:  # noqa: N802 (their name)
        """Run before fenced code is taken out."""
        md.preprocessors.register(
            ForgeMarkdown(md), "forge", (AFTER_WHITESPACE + BEFORE_FENCES) / 2
        )


def makeExtension(**given: object) -> Forge:  # noqa: N802 (their name)
    """As Python-Markdown asks for it."""
    return Forge(**given)


def prose(text: str) -> str:
    """A link to a file of the repository is its name, a list may follow its sentence, and `<` is a
    smaller-than."""
    named = LEADS_OUT.sub(r"`\1`", text)
    listed = LIST_AFTER_TEXT.sub(r"\1\n\n", named)
    return CODE_OR_TAG.sub(lambda found: "&lt;" if found[0] == "<" else found[0], listed)
