"""Other people's trainers, each with its healthy trainings and its faults: what the clinic is
counted on.

ward.py      what a ward, a fault and a patient are; each patient draws its settings
tasks.py     the environments, and their true returns
sb3.py, torchrl.py, trl.py, programs.py    a ward each
"""
