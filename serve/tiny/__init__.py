"""A tiny Qwen3.5 hybrid whose answers are written down, for the whole loop without a card."""
