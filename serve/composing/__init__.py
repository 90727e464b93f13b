"""A profile as a compose file."""
