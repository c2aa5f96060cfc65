"""Playing episodes: policies, the loop, the record of it, and the check that tasks are usable."""
