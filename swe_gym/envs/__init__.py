"""The Gymnasium environment and the ids under which it is registered."""
