"""Playing episodes: policies, the loop and the engine."""
