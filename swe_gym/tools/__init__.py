"""What a policy may do: the tools, the presets of them, and one function that makes either."""
