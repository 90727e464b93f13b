"""The benchmark: llama-benchy over a grid of depths and concurrencies, kept, tabled and drawn."""
