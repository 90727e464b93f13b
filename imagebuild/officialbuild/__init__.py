"""Upstream's own Dockerfile over the patched tree."""
