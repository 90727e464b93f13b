"""Can this machine serve the profile? Facts are gathered once, then plain functions judge."""
