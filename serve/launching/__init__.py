"""Starting a server, watching it come up, stopping it."""
