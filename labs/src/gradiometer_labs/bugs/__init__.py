"""GRPO in plain torch on small verifiable questions: the patient for rebuilt bugs of other people's
trainers."""
