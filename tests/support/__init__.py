"""Builders, slow twins and readers that tests share."""
