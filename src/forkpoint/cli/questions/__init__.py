"""Questions to the user at a terminal: about calls that wait for an approval, and about trust in a project."""
