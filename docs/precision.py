"""What a clinic found of each finding's precision, for the doctor: `python docs/precision.py
runs/clinic/clinic.json`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

KEPT = Path(__file__).parent.parent / "src/gradiometer/doctor/precision.json"


def main(results: str) -> None:
    """Of each id [right, shown] on what was held out."""
    found = json.loads(Path(results).read_text(encoding="utf-8"))["precision"]
    rows = [
        f'  "{id}": {counts["held_out"]}'
        for id, counts in sorted(found.items())
        if counts["held_out"][1]
    ]
    KEPT.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
    print(f"wrote {KEPT.name}: {len(rows)} findings")


if __name__ == "__main__":
    main(sys.argv[1])
