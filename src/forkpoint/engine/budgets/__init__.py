"""Budgets of conversations and families: what a call may cost is reserved before it is made."""
