"""Items of the Responses API: what a client may send, what it gets, their ids, and those of a conversation."""
