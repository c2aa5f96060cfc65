"""The program inside every sandbox, in parts; `serve` joins them."""
