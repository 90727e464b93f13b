"""A series of patches, and what it makes of a tree."""
