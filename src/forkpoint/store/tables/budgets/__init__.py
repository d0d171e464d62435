"""Budgets on disk: what may be spent, what was, and what calls under way may still cost."""
