"""`python -m swe_gym`: the `swe-gym` command."""

from .cli import main

if __name__ == "__main__":
    main()
