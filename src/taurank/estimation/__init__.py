"""What a log says about effects: gains, propensities, overlap."""
