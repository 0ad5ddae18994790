"""Attacks on files, processes and environments; ``python tests/torture`` runs them."""
