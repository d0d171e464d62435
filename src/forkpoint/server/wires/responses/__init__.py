"""Responses and Conversations: the API of OpenAI in which each response is a place to fork from.

`response_route` and `conversation_route` have the calls. `request` and `input` read a body,
`turn` finds its place and runs it, `output` and `document` make items and response objects of a turn, `stream` tells a
turn as events, and `ids` are the ids of all of these.
"""
