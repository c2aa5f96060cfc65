"""The sub-commands of `swe-gym`, one file each. The package `swe_gym_command` has the list of them."""
