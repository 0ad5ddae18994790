"""Where the truth is known: synthetic worlds and the Dunnhumby data."""
