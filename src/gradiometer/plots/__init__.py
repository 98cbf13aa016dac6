"""Figures with matplotlib, which is imported when one is drawn and not before."""
