"""Small events to build test conversations from."""

from forkpoint.events import (
    AssistantMessage,
    ModelCalled,
    NewEvent,
    Reasoning,
    StateChange,
    Text,
    ToolCall,
    ToolResult,
    Usage,
    UserMessage,
)


def says(text: str) -> NewEvent:
    """A user says something."""
    return NewEvent(UserMessage((Text(text),)))


def answers(text: str, *, response: int | None = None) -> NewEvent:
    """The model answers."""
    return NewEvent(AssistantMessage((Text(text),)), response=response)


def thinks(text: str, *, response: int | None = None) -> NewEvent:
    """The model thinks aloud."""
    return NewEvent(Reasoning(text=text, signature="signed"), response=response)


def calls(call_id: str, *, tool: str = "look", client: bool = False, response: int | None = None) -> NewEvent:
    """The model asks for a tool."""
    return NewEvent(ToolCall(call_id, tool, '{"at": 1}', client), response=response)


def returns(call_id: str, text: str = "seen", *, tool: str = "look") -> NewEvent:
    """A tool returns something."""
    return NewEvent(ToolResult(call_id, tool, (Text(text),)))


def remembers(key: str, json: str) -> NewEvent:
    """The agent's state changes."""
    return NewEvent(StateChange(((key, json),)))


def called(usage: Usage) -> NewEvent:
    """A model was asked, and reported this as used."""
    return NewEvent(ModelCalled("scripted/test", "scripted", usage, finish="stop"))


def exchange(question: str) -> list[NewEvent]:
    """A whole turn without tools."""
    return [says(question), answers(f"You said: {question}", response=1)]
