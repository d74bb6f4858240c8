"""What feeds count, what their trainers wait for, and how both are exported."""
