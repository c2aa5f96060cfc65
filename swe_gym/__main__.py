"""`python -m swe_gym`: the `swe-gym` command."""

from swe_gym_command import main

if __name__ == "__main__":
    main()
