"""Keeps pytest out of the toy repositories: their tests are data, run inside sandboxes."""

collect_ignore_glob = ["*"]
