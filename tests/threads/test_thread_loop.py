"""Tests for a thread with an event loop of its own. Each runs a program, from its first line to its exit."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import atexit, os, sys, threading, time
import anyio
from anyio.from_thread import BlockingPortal
from forkpoint.threads.thread_loop import ThreadLoop

async def serve(started):
    print("begins in", threading.current_thread().name)
    async with BlockingPortal() as portal:
        started(portal)
        await portal.sleep_until_stopped()
    print("ends")

def stop(portal):
    print("is stopped")
    portal.call(portal.stop, True)

loop = ThreadLoop("x", serve, stop, patience=10)
"""


def run(program: str) -> tuple[list[str], str]:
    """What a program prints, line by line, and what it complains of."""
    command = [sys.executable, "-u", "-c", PROGRAM + program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    return done.stdout.splitlines(), done.stderr


def test_the_thread_begins_when_it_is_first_needed_and_ends_with_the_process() -> None:
    program = """
print("nothing yet")
assert loop.handle() is loop.handle()
print(loop.is_here, loop.handle().call(lambda: loop.is_here))
"""
    assert run(program) == (["nothing yet", "begins in x", "False True", "is stopped", "ends"], "")


def test_a_thread_that_nobody_needs_is_never_started() -> None:
    assert run("") == ([], "")


def test_many_who_need_it_at_once_get_one_thread() -> None:
    program = """
found = []
threads = [threading.Thread(target=lambda: found.append(loop.handle())) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(set(map(id, found))))
"""
    assert run(program) == (["begins in x", "1", "is stopped", "ends"], "")


def test_no_thread_is_started_while_the_process_ends() -> None:
    program = """
def late():
    try:
        loop.handle()
    except RuntimeError as error:
        print(loop.is_ending, error)

atexit.register(late)
loop.handle()
"""
    out, complaints = run(program)
    assert out[1:] == ["is stopped", "ends", "True the process ends, and its thread 'x' has ended already"]
    assert complaints == ""


def test_a_loop_that_has_died_has_a_successor_and_only_that_one_is_stopped() -> None:
    program = """
first = loop.handle()
first.call(first.stop, True)
while loop._thread.is_alive(): time.sleep(0.001)
assert loop.handle() is not first
"""
    assert run(program) == (["begins in x", "ends", "begins in x", "is stopped", "ends"], "")


def test_an_error_at_the_beginning_goes_to_whoever_needs_the_thread() -> None:
    program = """
async def fail(started):
    raise ValueError("no")

try:
    ThreadLoop("y", fail, stop).handle()
except ValueError as error:
    print("raised", error)
"""
    assert run(program) == (["raised no"], "")


def test_a_process_waits_no_longer_than_its_patience() -> None:
    program = """
async def deaf(started):
    started("handle")
    await anyio.sleep(1000)

ThreadLoop("y", deaf, print, patience=0.1).handle()
"""
    assert run(program) == (["handle"], "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_has_a_thread_of_its_own_and_does_not_stop_its_parents() -> None:
    program = """
import warnings
warnings.simplefilter("ignore")
first = loop.handle()
child = os.fork()
if child == 0:
    assert loop.handle() is not first
    print("child")
    sys.exit()
os.waitpid(child, 0)
print(loop.handle() is first)
"""
    out, complaints = run(program)
    assert out == ["begins in x", "begins in x", "child", "is stopped", "ends", "True", "is stopped", "ends"]
    assert complaints == ""
