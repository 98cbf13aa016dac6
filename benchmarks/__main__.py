"""`make bench`: every benchmark, one after the other."""

from __future__ import annotations

from benchmarks import alternatives, commands, memory, meter, reductions, store, trainers

for part in (reductions, meter, alternatives, trainers, memory, store, commands):
    part.main()
