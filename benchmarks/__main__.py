"""`make bench`: the benchmarks of single steps and calls; `make bench-long` trains and looks at memory."""

from __future__ import annotations

from benchmarks import alternatives, anatomy, commands, experts, meter, reductions, replicates, store

for part in (reductions, meter, alternatives, store, commands, anatomy, replicates, experts):
    part.main()
