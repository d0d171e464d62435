"""What a shell offers when somebody presses Tab: commands, options, and what may stand after an option.

A script for the shell (`scripts`, printed by ``forkpoint completion``) calls the program with the variable
``_FORKPOINT_COMPLETE``, and the program answers (`answer`) with what may stand at the cursor (`candidates`). To answer
within a tenth of a second it loads no command: commands.json says which options each one has (`index`). A test compares
that file with the commands, and writes it anew. Tests: tests/cli/test_completion.py.
"""
