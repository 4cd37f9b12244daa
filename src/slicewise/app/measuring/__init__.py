"""Commands about running models: measure, campaign, calibrate, check, compare."""
