"""The machine: files that survive a crash, locks between processes, commands, and libraries that may be missing."""
