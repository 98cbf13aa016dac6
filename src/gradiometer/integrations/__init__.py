"""Doors to other people's trainers: a file each, and a framework is imported in its own file only."""

from __future__ import annotations

__all__: list[str] = []
