"""`make bench`: every benchmark, one after the other."""

from __future__ import annotations

from benchmarks import commands, meter, reductions, store

for part in (reductions, meter, store, commands):
    part.main()
