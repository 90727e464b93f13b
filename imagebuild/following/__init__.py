"""What upstream's releases do to the series, and what to do then."""
