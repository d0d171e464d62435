"""An MCP server in plain Python, run as a script: it has one tool, and writes down what it does.

What it answers has the key that it was given, as servers do that mean well.
"""

import json
import os
import sys
from typing import Any

TOOL = {
    "name": "send",
    "description": "Sends a parcel.",
    "inputSchema": {"type": "object", "properties": {"to": {"type": "string"}}, "required": ["to"]},
}


def main() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        answer = answer_to(message.get("method"), message.get("params") or {})
        if answer is not None:
            say({"id": message["id"], "result": answer})


def answer_to(method: str | None, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "initialize":
            info = {"name": "post", "version": "1"}
            return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": [TOOL]}
        case "tools/call":
            return send(params)
        case _:
            return None


def send(params: dict[str, Any]) -> dict[str, Any]:
    log("starts call_send")
    if (token := (params.get("_meta") or {}).get("progressToken")) is not None:
        told = {"progressToken": token, "progress": 1, "message": f"with {os.environ['POST_KEY']}"}
        say({"method": "notifications/progress", "params": told})
    log("ends call_send")
    words = f"Sent to {params['arguments']['to']} with {os.environ['POST_KEY']}."
    return {"content": [{"type": "text", "text": words}]}


def log(line: str) -> None:
    with open(os.environ["POST_LOG"], "ab", buffering=0) as file:
        file.write(line.encode() + b"\n")


def say(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


if __name__ == "__main__":
    main()
