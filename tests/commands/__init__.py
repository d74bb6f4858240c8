"""What commands take, print and refuse."""
