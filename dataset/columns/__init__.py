"""Tables as columns, in numpy's `.npz` files."""
