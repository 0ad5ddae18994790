"""What to run: experiments and presets, as TOML files and as dataclasses."""
