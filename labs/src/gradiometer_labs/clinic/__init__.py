"""The clinic: real trainings with one line broken, diagnosed, and an honest count of how often the
doctor is right.

grid.py        which trainings: faults, doses, pairs, controls; what is held out (split.toml)
training.py    one training of the grid, or its kept record
judging.py     one run diagnosed: from all that was kept, from its log alone, by public thresholds
thresholds.py  those thresholds
scoring.py     accuracy with the fault as the unit, precision, false alarms, time to detection
summary.py     all figures in one document
cases.py       logs whose truth is known, each read once: kept, labelled, made up
sweep.py       what other thresholds would find on them, and cry wolf about
confusion.py   what was expected against what was said, as a picture
report.py      docs/clinic-labs.md

Other people's trainers (`gradiometer_labs.wards`) are counted by themselves:

patients.py    one patient trained, or its kept readings; the dataset card
outsider.py    what another tool says of the same logs
wardsummary.py each trainer's figures, and the mean over trainers nothing was tuned on
wardreport.py  docs/clinic.md
"""
