"""The paper's tables, its claims, and the criteria by which a run reproduces them or does not."""
