"""A model's API for agents inside sandboxes, which records what it samples.

`Session` is the door of one episode: it speaks the protocols of OpenAI and Anthropic over the connections that a
sandbox forwards. A `Sampler` answers the calls.
"""
