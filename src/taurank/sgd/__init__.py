"""The training engine: arrays in, arrays out. It knows neither logs nor learners."""
