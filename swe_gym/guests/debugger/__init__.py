"""A `pdb` whose prompt is a channel to the `pdb` tool, in parts; `main` joins them."""
