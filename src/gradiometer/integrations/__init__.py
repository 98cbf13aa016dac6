"""Callbacks for other people's trainers: a framework is imported only in the file of its name."""

from __future__ import annotations

__all__: list[str] = []
