"""What a turn is given from a command line: the message, and what is piped to the program."""
