"""Generated scenes of shapes, for tests and demos without a download."""
