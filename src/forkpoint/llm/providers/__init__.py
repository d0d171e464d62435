"""Those who can be asked: one provider for each wire. None of them holds anything of a conversation."""
