"""Erasure on disk: which rows have what somebody wants to erase (`reach`), and their removal (`removal`)."""
