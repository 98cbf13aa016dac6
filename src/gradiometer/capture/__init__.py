"""Everything that touches a live model."""
