"""Wheels and layers: the same input gives the same bytes."""
