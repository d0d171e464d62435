"""Collection: what no conversation reaches any more is removed, and what was kept long enough (`retention`)."""
