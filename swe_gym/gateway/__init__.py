"""Unmodified agents as policies: what they ask their model leaves the sandbox over its own byte stream."""
