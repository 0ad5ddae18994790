"""From a table of impressions and a table of outcomes to a log."""
