"""Pages of runs: served by `server`, or written by `report` and `training_report` as one file."""
