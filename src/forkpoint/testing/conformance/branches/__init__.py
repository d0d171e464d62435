"""What is asked of branches: how they begin, stand beside each other, and give to each other."""
