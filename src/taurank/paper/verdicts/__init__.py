"""The paper's tables, its claims, and how they are judged."""
