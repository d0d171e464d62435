"""What branches ask of history: how two paths differ, what one can take over from another, and where one goes on."""
