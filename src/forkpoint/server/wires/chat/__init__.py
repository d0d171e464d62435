"""Chat completions: the API that clients already speak, over conversations that are transactions.

`route` has the calls, `request` and `messages` read a body, `turn` answers it; `answer`, `stream` and `errors` write
OpenAI's JSON; `service` and `memory` are what all requests share.
"""
