"""Contract suites that users run on their own backends: `swe_gym.testing.sandbox_contract`."""
