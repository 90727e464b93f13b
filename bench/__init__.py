"""Measurements, taken in one run, printed as ratios: `python -m bench`."""
