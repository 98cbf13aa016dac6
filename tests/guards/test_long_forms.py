"""tests/long_forms.txt names tests that are there, and takes no test away as a whole without naming
what proves it instead."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_long_form_is_there_and_has_a_quicker_one() -> None:
    lines = (ROOT / "tests" / "long_forms.txt").read_text("utf-8").splitlines()
    entries = [line for line in lines if line and not line.startswith("#")]
    assert entries
    for entry in entries:
        test, _, instead = entry.partition("  <-")
        file, _, name = test.partition("::")
        function = name.partition("[")[0]
        text = (ROOT / file).read_text("utf-8")
        assert re.search(rf"^def {re.escape(function)}", text, re.MULTILINE), entry
        assert "[" in name or instead.strip(), f"{entry}: what proves it in make test?"
