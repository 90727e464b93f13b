"""What comes from outside: the package index, the cache, archives, git."""
