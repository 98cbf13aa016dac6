"""How a diagnosis is said: plain values for JSON, text, Markdown, and a page of HTML."""

__all__: list[str] = []
