"""What is learned from measurements: pure functions (state, sample) -> (state, estimate)."""
