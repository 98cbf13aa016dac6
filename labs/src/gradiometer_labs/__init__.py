"""Small real trainings, to learn from and to test the doctor on: one folder of the same shape each.

A lab is a folder with an `about.py` (`LAB`, what it is) and a `config.py` (`Config`), both
torch-free, a `train.py` that reads from top to bottom (`train(config, progress)`) and a
`faults.py`. Every such folder is a lab: there is no list to add it to.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from importlib.util import find_spec

from gradiometer.errors import UnknownName
from gradiometer_labs.lab import Lab, Wording

__all__ = ["LABS", "Lab", "Wording", "find"]


def _found() -> dict[str, Lab]:
    folders = (f"{__name__}.{each.name}" for each in pkgutil.iter_modules(__path__) if each.ispkg)
    labs: list[Lab] = [
        import_module(f"{name}.about").LAB for name in folders if find_spec(f"{name}.about")
    ]
    return {lab.name: lab for lab in labs}


LABS = _found()


def find(name: str) -> Lab:
    """The lab of that name."""
    if name not in LABS:
        raise UnknownName("lab", name, LABS, hint=f"The labs are: {', '.join(LABS)}.")
    return LABS[name]
