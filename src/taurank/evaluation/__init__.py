"""What a ranking is worth: metrics, intervals, bounds."""
