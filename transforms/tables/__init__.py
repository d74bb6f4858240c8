"""Columns of tables become `tf.train.Example` records."""
