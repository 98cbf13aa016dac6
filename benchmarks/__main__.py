"""`python -m benchmarks [PART ...]`: measure, print each row as it comes, and write
docs/benchmarks.md if asked to."""

from __future__ import annotations

import argparse
import gc
import sys
import time
import traceback
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from benchmarks.page import Result, line, load, machine, merged, page, save
from benchmarks.rows import Row, Scale

__all__ = ["PARTS", "main"]

PARTS = (
    "reductions",
    "meter",
    "alternatives",
    "trainers",
    "integrations",
    "listening",
    "distributed",
    "growth",
    "memory",
    "store",
    "parsers",
    "commands",
    "doctor",
    "dashboard",
    "home",
    "anatomy",
    "replicates",
    "experts",
)


def measure(part: str, scale: Scale) -> Result:
    """Run one part. A failure is told and kept: the other parts still count."""
    import torch

    torch.set_num_threads(1)
    facts, started, rows, error = machine(), time.perf_counter(), list[Row](), ""
    try:
        module = import_module(f"benchmarks.{part}")
        for row in module.rows(scale):
            print(line(row), flush=True)
            rows.append(row)
    except Exception as problem:
        traceback.print_exc()
        error = f"{type(problem).__name__}: {problem}".splitlines()[0]
    gc.collect()
    seconds = time.perf_counter() - started
    return Result(part=part, rows=rows, seconds=seconds, error=error, machine=facts)


def _arguments(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Speed, beside the alternatives."
    )
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; all of them unless told"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one round of small sizes: does it still run?"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="keep the rows as JSON")
    parser.add_argument(
        "--write", type=Path, metavar="PAGE", help="write the page, and its rows as JSON beside it"
    )
    arguments = parser.parse_args(given)
    for name in arguments.parts:
        if name not in PARTS:
            parser.error(f"there is no benchmark {name!r}; there are {', '.join(PARTS)}")
    if arguments.quick and arguments.write:
        parser.error("--quick gives no figures for a page; leave out one of --quick and --write")
    return arguments


def main(given: Sequence[str] | None = None) -> int:
    """1 if a part failed; a missed target is no failure."""
    arguments, results, started = _arguments(given), list[Result](), time.perf_counter()
    for part in arguments.parts or PARTS:
        print(f"[{time.perf_counter() - started:6.0f} s] {part}", flush=True)
        results.append(measure(part, Scale(quick=arguments.quick)))
        print(f"  {part} took {results[-1].seconds:.1f} s", flush=True)
        if arguments.write:
            kept = arguments.write.with_suffix(".json")
            together = merged(load(kept), results, PARTS)
            save(together, kept)
            arguments.write.write_text(page(together, tuple(PARTS)), "utf-8")
    if arguments.json:
        save(results, arguments.json)
    failed = [result.part for result in results if result.error]
    print(
        f"[{time.perf_counter() - started:6.0f} s] done"
        + (f"; failed: {', '.join(failed)}" if failed else "")
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
