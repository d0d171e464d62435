"""An MCP server in plain Python, run as a script, that does whatever a test needs: well, oddly or not at all.

Its first argument says how it behaves from the start, and each of its tools how it behaves from then on.
"""

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

MANNER = sys.argv[1] if len(sys.argv) > 1 else "well"
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TOOLS = [
    "answer",
    "ask",
    "cancelled",
    "chatter",
    "change",
    "close",
    "count",
    "die",
    "echo",
    "environment",
    "fail",
    "flood",
    "hang",
    "huge",
    "link",
    "many_parts",
    "pid",
    "progress",
    "refuse",
    "rubbish",
    "slow",
    "structured",
    "stuck",
    "sound",
    "wrong_result",
]


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def result(id: Any, *content: dict[str, Any], **more: Any) -> None:
    send({"id": id, "result": {"content": list(content), **more}})


def text(said: str) -> dict[str, Any]:
    return {"type": "text", "text": said}


def listed() -> list[dict[str, Any]]:
    schema: dict[str, Any] = {"type": "object", "properties": {"x": {"type": "integer"}}}
    tools = [{"name": name, "description": f"Does {name}.", "inputSchema": schema} for name in reversed(TOOLS)]
    match MANNER:
        case "names":
            odd = ["a.b", "a b", "a_b", "c.d", "", "long" * 40, "long" * 40 + "er", "é", "c.d"]
            return [{"name": name, "inputSchema": schema} for name in odd]
        case "many":
            return [{"name": f"t{n}", "inputSchema": schema} for n in range(300)]
        case "large":
            return [{"name": "large", "inputSchema": {"type": "object", "description": "x" * 70_000}}]
        case "wordy":
            return [{"name": "wordy", "description": "x" * 50_000, "inputSchema": schema}]
        case "endless words":
            return [{"name": "wordy", "description": "x" * 5_000_000, "inputSchema": schema}]
        case "hints":
            hints = {"look": {"readOnlyHint": True}, "put": {"idempotentHint": True}, "drop": {"destructiveHint": True}}
            return [{"name": name, "inputSchema": schema, "annotations": one} for name, one in hints.items()]
        case "regex":  # takes for ever to check by, as does its answer
            evil = {"type": "object", "properties": {"x": {"type": "string", "pattern": "^(a+)+$"}}}
            return [{"name": "answer", "inputSchema": schema, "outputSchema": evil}]
        case _:
            return tools


def call(id: Any, name: str, params: dict[str, Any]) -> None:
    given = params.get("arguments") or {}
    match name:
        case "echo":
            result(id, text(json.dumps(given, sort_keys=True)))
        case "answer":
            result(id, text("answered"), structuredContent={"x": "a" * 40 + "!"})
        case "count":
            COUNTED.append(id)
            result(id, text(str(len(COUNTED))))
        case "stuck":
            with open(given["file"], "w") as file:
                file.write(f"{os.getpid()}\n")
        case "pid":
            result(id, text(str(os.getpid())))
        case "environment":
            result(id, text(json.dumps({"env": dict(os.environ), "cwd": os.getcwd()})))
        case "many_parts":
            pdf = {"uri": "file:///a/b.pdf", "mimeType": "application/pdf", "blob": "JVBERi0xLjQK"}
            result(
                id,
                text("first"),
                {"type": "image", "data": PNG, "mimeType": "image/png"},
                {"type": "image", "data": PNG, "mimeType": "image/jpeg"},
                {"type": "image", "data": "no base64", "mimeType": "image/png"},
                {"type": "resource", "resource": {"uri": "file:///a/b.txt", "text": "inside"}},
                {"type": "resource", "resource": pdf},
                {"type": "resource", "resource": {"uri": "file:///a/b.bin", "blob": "AAAA"}},
            )
        case "sound":
            result(id, {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"})
        case "link":
            result(id, {"type": "resource_link", "uri": "file:///a", "name": "a", "description": "the first"})
        case "structured":
            result(id, structuredContent={"answer": 42})
        case "fail":
            result(id, text("the disk is full"), isError=True)
        case "refuse":
            send({"id": id, "error": {"code": -32000, "message": "not today"}})
        case "wrong_result":
            send({"id": id, "result": {"content": "words"}})
        case "ask":
            send({"id": "mine", "method": "sampling/createMessage", "params": {"messages": [], "maxTokens": 1}})
            answer = json.loads(sys.stdin.readline())
            result(id, text("refused" if "error" in answer else "granted"))
        case "chatter":
            print("Welcome!\n\n{}\n[1]", flush=True)
            result(id, text("after the chatter"))
        case "rubbish":
            for _ in range(20_000):
                print("this is no message of any kind", flush=False)
            sys.stdout.flush()
        case "huge":
            sys.stdout.write("x" * (17 * 1024 * 1024))
            sys.stdout.flush()
            time.sleep(60)
        case "flood":
            result(id, text("y" * 2_000_000))
        case "die":
            print("Traceback: it hurts", file=sys.stderr, flush=True)
            os._exit(3)
        case "close":
            sys.stdout.close()
            os.close(1)
            time.sleep(60)
        case "hang":
            while sys.stdin.readline():
                pass
        case "slow":
            pass  # it answers other things
        case "cancelled":
            result(id, text(json.dumps(CANCELLED)))
        case "progress":
            token = params["_meta"]["progressToken"]
            for n in (1, 2):
                told = {"progressToken": token, "progress": n, "total": 2, "message": f"step {n}"}
                send({"method": "notifications/progress", "params": told})
            result(id, text("done"))
        case "change":
            TOOLS.append("added")
            send({"method": "notifications/tools/list_changed"})
            result(id, text("changed"))
        case _:
            send({"id": id, "error": {"code": -32602, "message": f"Unknown tool: {name}"}})


CANCELLED: list[Any] = []
COUNTED: list[Any] = []


def main() -> None:
    if MANNER == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        TOOLS[:] = [f"child-{child.pid}"]
    if MANNER == "leaves":
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
        TOOLS[:] = [f"child-{child.pid}"]
    if MANNER == "dies":
        sys.exit("no key was given")
    if MANNER == "tells":
        sys.exit(f"{'x' * 50} token={os.environ['TOKEN']} {'y' * 280}")
    if MANNER == "shows":
        print("z" * 290, os.environ["TOKEN"], flush=True)
        sys.exit(3)
    if MANNER == "silent":
        time.sleep(600)
    if MANNER == "yes":
        while True:
            print("y")
    while line := sys.stdin.readline():
        message = json.loads(line)
        id, params = message.get("id"), message.get("params") or {}
        match message.get("method"):
            case "initialize" if MANNER == "modern":
                send({"id": id, "error": {"code": -32601, "message": "Method not found"}})
            case "initialize":
                can = {"tools": {"listChanged": True}}
                info = {"name": "odd", "version": "1"}
                version = params["protocolVersion"]
                send({"id": id, "result": {"protocolVersion": version, "capabilities": can, "serverInfo": info}})
            case "server/discover":
                can = {"tools": {}}
                send(
                    {
                        "id": id,
                        "result": {
                            "supportedVersions": ["2026-07-28"],
                            "capabilities": can,
                            "ttlMs": 0,
                            "cacheScope": "private",
                            "resultType": "complete",
                        },
                    }
                )
            case "tools/list" if MANNER == "endless":
                send({"id": id, "result": {"tools": [], "nextCursor": "more"}})
            case "tools/list" if MANNER == "pages":
                first = not params.get("cursor")
                page = listed()[:3] if first else listed()[3:]
                send({"id": id, "result": {"tools": page, **({"nextCursor": "2"} if first else {})}})
            case "tools/list" if MANNER == "moving" and "added" not in TOOLS:
                if not params.get("cursor"):
                    send({"id": id, "result": {"tools": listed(), "nextCursor": "2"}})
                else:
                    TOOLS.append("added")
                    send({"method": "notifications/tools/list_changed"})
                    send({"id": id, "result": {"tools": []}})
            case "tools/list":
                more = {"ttlMs": 0, "cacheScope": "private", "resultType": "complete"} if MANNER == "modern" else {}
                send({"id": id, "result": {"tools": listed(), **more}})
            case "tools/call":
                call(id, params["name"], params)
            case "notifications/cancelled":
                CANCELLED.append(params["requestId"])
            case _:
                pass
    if MANNER == "stubborn":
        time.sleep(600)


if __name__ == "__main__":
    main()
