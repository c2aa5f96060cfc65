"""The record of episodes: trajectories, run folders, exporters and importers."""
