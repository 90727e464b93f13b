"""Bytes and tokens before anything is started: what fits on a card, and how fast it can be."""
