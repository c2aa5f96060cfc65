"""The sub-commands of `swe-gym`, those of one subject in a file. The package `swe_gym_command` has the list of them."""
