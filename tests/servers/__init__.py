"""Servers that stand for Docker, Kubernetes and E2B in tests and benchmarks, and fail on command."""
