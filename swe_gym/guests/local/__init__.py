"""The programs that become a local sandbox: the launcher, its tiers and what they know of Linux."""
