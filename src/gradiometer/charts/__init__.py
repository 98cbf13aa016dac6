"""What a chart shows, decided once: the page draws these objects, and so do the figures."""

from __future__ import annotations
