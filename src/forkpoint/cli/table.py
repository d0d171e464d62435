"""Which commands there are: the section of the help that shows each, its place, and the first line of its help.

A row is ``name: (place, help)``, the place a module and a function. Nothing here imports a command.
Tests: tests/cli/test_program.py.
"""

from typing import TypeAlias

Rows: TypeAlias = dict[str, tuple[str, str]]

SECTIONS: dict[str, Rows] = {
    "Talk": {
        "demo": ("commands.demo:demo", "Show what Forkpoint does, with a real model: offline, in less than a minute."),
        "run": ("commands.run:run", "Run one turn: say something, and get an answer that is committed."),
        "chat": ("chat.command:chat", "Talk, and see answers as they come."),
        "ask": ("commands.turns:ask", "Ask a side question, of which nothing is kept."),
    },
    "Look": {
        "list": ("commands.conversations:list_conversations", "Show the conversations of a store."),
        "show": ("commands.show:show", "Show a conversation: origin, cost, cache key, turns, events."),
        "tree": (
            "commands.branches.tree:tree",
            "Draw a conversation's forks, its sub-agents, its sides, and what was set aside.",
        ),
        "request": ("commands.request:request", "Show what was sent to the model, or would be."),
        "why": ("commands.why:why", "Say why a turn missed its provider's cache."),
        "usage": ("commands.conversations:usage", "Show what was spent in all."),
        "templates": ("commands.templates:templates", "Show the templates for `forkpoint run`."),
        "skills": ("", "Skills: yours, and those of the project here if you trust it."),
    },
    "Branch": {
        "fork": ("commands.branches.tree:fork", "Begin a conversation that shares another's history."),
        "rewind": ("commands.branches.tree:rewind", "Go back in a conversation."),
        "keep": ("commands.branches.keep:keep", "Go on from a branch under the conversation's own name."),
        "diff": ("commands.branches.diff:diff", "Show how two conversations differ, side by side."),
        "bring": ("commands.branches.bring:bring", "Bring an answer, a summary or turns from a branch."),
        "budget": (
            "commands.branches.budget:budget",
            "Show or set what a conversation or its family may spend in all.",
        ),
        "agents": ("", "The sub-agents of a conversation: who they are, and how they stand."),
    },
    "Turns": {
        "retry": ("commands.turns:retry", "Run a turn that did not commit again."),
        "go-on": ("commands.turns:go_on", "Run a turn without a message, in the middle of what a model was doing."),
        "resume": ("commands.turns:resume", "Go on with a turn after its last finished step."),
        "approve": ("commands.turns:approve", "Look at calls that wait for an approval, and let them run."),
        "deny": ("commands.turns:deny", "Refuse calls that wait for an approval."),
        "approvals": ("commands.approvals:approvals", "Show what a conversation may do without a question."),
        "steer": ("commands.turns:steer", "Send a message to the turn that runs, in whichever process."),
        "cancel": ("commands.turns:cancel", "Cancel the turn that runs, in whichever process."),
        "discard": ("commands.turns:discard", "End an open turn that nobody runs."),
        "condense": ("commands.turns:condense", "Have the older part of a conversation summed up."),
    },
    "Care": {
        "describe": ("commands.conversations:describe", "Give a conversation a title or tags."),
        "rename": ("commands.conversations:rename", "Give a conversation another name."),
        "delete": ("commands.conversations:delete", "Delete a conversation."),
        "backup": ("commands.care.copies:backup", "Copy a store to a file, while others use it."),
        "restore": ("commands.care.copies:restore", "Make a store of a backup."),
        "collect": ("commands.care.collect:collect", "Remove from the disk what was deleted or kept long enough."),
        "erase": ("commands.care.erase:erase", "Remove content for good, and get a receipt."),
        "erasures": ("commands.care.erase:erasures", "Show the receipts of all erasures."),
        "hold": ("commands.care.hold:hold", "Keep a family of conversations from deletion and erasure."),
        "release": ("commands.care.hold:release", "End a hold, so that a family may be deleted and erased again."),
        "export": ("commands.care.exports:export", "Write conversations into a file."),
        "import": ("commands.care.exports:import_", "Bring the conversations of an export into a store."),
        "verify": ("doctor.command:verify", "Check that everything is as it was written."),
        "anchor": (
            "commands.care.anchor:anchor",
            "Print a line to keep elsewhere, which shows later whether history was rewritten.",
        ),
        "doctor": ("doctor.command:doctor", "Check settings, store, keys and models."),
        "trust": ("commands.trust:trust", "Trust the project that a folder belongs to, with what it runs now."),
        "local": ("", "The model that runs on this machine: local/smollm2."),
        "completion": ("completion.command:completion", "Print what makes the Tab key complete command lines."),
    },
    "Serve": {
        "serve": ("commands.serve:command", "Serve conversations over HTTP."),
        "keys": ("", "The keys that a server of yours accepts: who may call it."),
        "config": ("", "The file with agents and settings that servers find in their store."),
    },
}
"""The commands by section. Those without a place are groups."""

GROUPS: dict[str, Rows] = {
    "agents": {
        "list": ("commands.agents:list_agents", "Show the sub-agents of a conversation, and how they stand."),
        "spawn": ("commands.agents:spawn", "Make a sub-agent, and run its task."),
        "send": ("commands.agents:send", "Run a turn of a sub-agent."),
        "wait": ("commands.agents:wait", "Wait until nothing runs in a sub-agent, and show its newest turn."),
        "close": ("commands.agents:close", "Close a sub-agent that is not needed any more."),
    },
    "keys": {
        "add": ("commands.keys:add", "Make a key, and print it."),
        "list": ("commands.keys:list_", "Show the keys that there are, without their secrets."),
        "role": ("commands.keys:role", "Give a key another role."),
        "revoke": ("commands.keys:revoke", "Remove a key."),
    },
    "config": {
        "put": ("commands.config:put", "Put a server's file into a store."),
        "show": ("commands.config:show", "Print the file that a store has for its servers."),
        "remove": ("commands.config:remove", "Take the file for servers out of a store."),
    },
    "local": {
        "fetch": ("commands.local:fetch", "Get the weights of local/smollm2 (98 MB) into your cache folder."),
        "status": ("commands.local:status", "Show whether local/smollm2 can be asked, and what is missing if not."),
    },
    "skills": {
        "list": ("commands.skills:list_skills", "List all skills, and what cannot be used."),
        "show": ("commands.skills:show", "Show a skill: what calls for it, and what a model is told."),
        "explain": ("commands.skills:explain", "Say which skills a message would activate, and why."),
    },
}
"""The commands of each group."""

AGENTS_EXAMPLES = """

\b
Examples:
  forkpoint agents build-1234
  forkpoint agents spawn build-1234 "Read the log, and say why it failed." --nickname reader
  forkpoint agents send build-1234 reader "And the build before?"
"""
