"""What is asked of engines themselves, where the administrator opened the way to them."""
