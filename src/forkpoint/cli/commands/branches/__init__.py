"""Commands that branch a conversation, and that look at its branches."""
