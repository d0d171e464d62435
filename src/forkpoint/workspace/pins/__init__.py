"""What a project would run, trusted by its digest: what is pinned, and where that is kept."""
