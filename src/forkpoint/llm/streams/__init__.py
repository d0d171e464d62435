"""From a provider's stream to an answer: one small machine for each wire.

Each takes the stream's events as plain JSON values, tells each piece to a `Hearing` as it comes, and makes the whole
answer at the end. What a stream does not say is not assumed: one that ends without its terminal event is no answer.
"""
