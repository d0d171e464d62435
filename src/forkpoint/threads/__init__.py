"""Threads and event loops: a loop in a thread of its own, waking a task from a thread, work that is not cut off."""
