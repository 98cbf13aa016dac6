"""Small trainings in the styles people write them, unchanged but for `oracle(...)`: what each term's
gradient is when it is taken by hand, before the loss goes backward."""
