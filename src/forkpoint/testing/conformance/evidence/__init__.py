"""What is asked of evidence: what a store records and proves, what it counts, and how content goes."""
