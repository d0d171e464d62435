"""Turns that run apart from requests, and streams that follow them, a conversation or a family."""
