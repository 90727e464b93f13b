"""Serve a model with the patched vLLM, and check what it answers: `python -m serve --help`."""
