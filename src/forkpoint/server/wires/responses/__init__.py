"""Responses and Conversations: the API of OpenAI in which each response is a place to fork from.

`response_route` and `conversation_route` have the calls. `request` reads a body, `turn` finds its place and runs it,
`document` makes the response object of a turn, and `stream` tells a turn as events. `items/` has what a client sends
and gets, and the ids of all of it.
"""
