"""Reads bodies, renders chat templates and tokenizes prompts outside of the event loop, within limits."""
