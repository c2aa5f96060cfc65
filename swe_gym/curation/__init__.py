"""Making tasks and vouching for them."""
