"""What `TerminalVisualizer` is made of: where turns are shown, and how text becomes lines of a screen."""
