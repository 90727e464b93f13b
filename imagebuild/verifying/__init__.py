"""Artifacts compared with the locks, wherever they are."""
