"""Test helpers for users: the contract of sandboxes, cheats, and a scripted OpenAI server."""
