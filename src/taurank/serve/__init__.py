"""The closed loop as a service: draw lists with exact propensities, record, measure the lift, learn, promote."""
