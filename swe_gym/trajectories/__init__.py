"""The record of episodes: trajectories, run folders, comparisons, data frames, exporters and importers."""

from .frames import frame as frame
