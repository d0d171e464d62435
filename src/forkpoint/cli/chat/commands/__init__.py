"""What a user can ask a chat for with a line that begins with a slash, by group."""
