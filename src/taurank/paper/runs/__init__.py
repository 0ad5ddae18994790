"""Running experiments: samples, fits, search, tables."""
