"""What the propensities of a log allow one to estimate."""
