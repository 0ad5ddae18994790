"""From a shop's tables to a decision: which ranking to show, whether to believe it, and how to find out if not."""
