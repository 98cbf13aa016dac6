"""The clinic: real trainings with one line broken, diagnosed, and an honest count of how often the doctor is right.

wards.py      the short forms of the labs that patients train in
patients.py   the grid: faults, doses, pairs of faults, healthy controls; and what is held out (split.toml)
admission.py  one patient trained, or found trained already
judging.py    one run diagnosed: from all that was kept, from its scalar log alone, and by public thresholds
thresholds.py those thresholds
scoring.py    accuracy with the fault as the unit, precision, false alarms, time to detection
report.py     docs/clinic.md
"""
