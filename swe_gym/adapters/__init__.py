"""Adapters for other libraries, one file each."""
