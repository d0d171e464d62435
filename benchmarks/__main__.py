"""The command: measures, prints tables as they come, and writes the page of documentation."""

import argparse
import gc
import os
import sys
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import anyio

from benchmarks import chain, disk, fork, load, peers, render, tail, turn, writers
from benchmarks.bench import Bench
from benchmarks.machine import look
from benchmarks.plan import FULL, QUICK
from benchmarks.progress import Progress
from benchmarks.report import COMMAND, budget_table, page, section_text, table_text
from benchmarks.results import Section

PAGE = Path(__file__).parents[1] / "docs" / "benchmarks.md"


async def _conversation(bench: Bench) -> Section:
    from benchmarks import conversation  # only when it is measured: it has SDKs to import

    return await conversation.measure(bench)


async def _server(bench: Bench) -> Section:
    from benchmarks import server  # only when it is measured: it needs the extra `server`

    return await server.measure(bench)


async def _postgres(bench: Bench) -> Section:
    from benchmarks.on_postgres import measurement  # only when it is measured: it starts a server

    return await measurement.measure(bench)


async def _chat(bench: Bench) -> Section:
    from benchmarks import chat  # only when it is measured: it needs the extra `server`

    return await chat.measure(bench)


async def _responses(bench: Bench) -> Section:
    from benchmarks import responses  # only when it is measured: it needs the extra `server`

    return await responses.measure(bench)


MEASUREMENTS: dict[str, Callable[[Bench], Awaitable[Section]]] = {
    "fork": fork.measure,
    "turn": turn.measure,
    "load": load.measure,
    "tail": tail.measure,
    "chain": chain.measure,
    "disk": disk.measure,
    "writers": writers.measure,
    "render": render.measure,
    "conversation": _conversation,
    "server": _server,
    "chat": _chat,
    "responses": _responses,
    "postgres": _postgres,
}

_WITHOUT_PEERS = {"server", "chat", "responses"}  # these need none of the group `benchmarks`
_SILENT = {"OPENAI_AGENTS_DISABLE_TRACING": "1", "LANGSMITH_TRACING": "false", "LANGCHAIN_TRACING_V2": "false"}


def main(arguments: Sequence[str]) -> None:
    options = _options(arguments)
    os.environ |= _SILENT  # peers tell nobody what they do
    text = anyio.run(_run, options, arguments)
    output = options.output or (None if options.quick or options.only else PAGE)
    if output is not None:
        output.write_text(text, encoding="utf-8")
        print(f"Written to {output}.", file=sys.stderr)


async def _run(options: argparse.Namespace, arguments: Sequence[str]) -> str:
    progress = Progress()
    sections: list[Section] = []
    with tempfile.TemporaryDirectory(prefix="forkpoint-benchmarks-") as folder:
        bench = Bench(QUICK if options.quick else FULL, Path(folder), progress)
        machine = look(Path(folder))
        names = options.only or MEASUREMENTS
        if set(names) - _WITHOUT_PEERS:
            progress.say("importing peers")
            peers.writing()
        gc.collect()
        gc.freeze()  # what the imports left behind is not work for the collector while something is measured
        for name in names:
            progress.say(name)
            sections.append(await MEASUREMENTS[name](bench))
            print(section_text(sections[-1]), flush=True)
    budgets = [budget for section in sections for budget in section.budgets]
    if budgets:
        print(f"## Budgets\n\n{table_text(budget_table(budgets))}\n", flush=True)
    progress.say("done")
    return page(machine, sections, arguments=_shown(arguments), quick=options.quick)


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog=COMMAND,
        description="Measures what Forkpoint costs, beside bare SQLite and peers, in one run of a few minutes.",
        epilog="Databases stand in a temporary folder that is removed afterwards; a full run needs about 6 GB there.",
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and few rounds, in about half a minute")
    parser.add_argument(
        "--only",
        action="append",
        choices=list(MEASUREMENTS),
        metavar="NAME",
        help=f"measure only this; may be given several times ({', '.join(MEASUREMENTS)})",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="PATH",
        help="where to write the page (default: docs/benchmarks.md; nowhere with --quick or --only)",
    )
    return parser.parse_args(arguments)


def _shown(arguments: Sequence[str]) -> list[str]:
    """The arguments as the page shows them: all but where it was written to."""
    shown: list[str] = []
    skip = False
    for argument in arguments:
        if not skip and not argument.startswith("--output"):
            shown.append(argument)
        skip = argument == "--output"
    return shown


if __name__ == "__main__":
    main(sys.argv[1:])
