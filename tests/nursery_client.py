"""A program of `tests.nursery`, as a shell starts it: ``nursery_client.py ADDRESS PROGRAM [ARGUMENT ...]``.

It hands over all that it has and waits for the end. Signals that it gets, Ctrl-C among them, it passes on.
"""

import json
import os
import signal
import socket
import sys

address, *program = sys.argv[1:]
connection = socket.socket(socket.AF_UNIX)
connection.connect(address)
order = {"program": program, "folder": os.getcwd(), "environment": dict(os.environ)}
socket.send_fds(connection, [json.dumps(order).encode() + b"\n"], [0, 1, 2])
answers = connection.makefile()
child = int(answers.readline())
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
    signal.signal(number, lambda number, _: os.kill(child, number))
for file in (0, 1, 2):  # whoever reads the other end of a pipe hears when the program has ended
    os.close(file)
status = int(answers.readline() or -signal.SIGKILL)
os._exit(status if status >= 0 else 128 - status)
