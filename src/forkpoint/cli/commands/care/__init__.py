"""Commands that keep a store safe: copies, exports and anchors; and what goes for good, or is held."""
