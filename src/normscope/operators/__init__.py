"""What each map does: its linear part, its constants, its range."""
