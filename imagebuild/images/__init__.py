"""OCI images: their documents, layouts, archives and registries."""
