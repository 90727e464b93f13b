"""Provenance, SBOMs, signatures, and what was published."""
