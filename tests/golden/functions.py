"""Functions that cases give to `--map`."""


def upper(record):
    """Changes a record."""
    return record.upper()


def thin(record):
    """Drops records of an odd number of bytes."""
    return None if len(record) % 2 else record


def words(record):
    """Makes a record of each of the first three words."""
    return record.split()[:3]


def measures(record):
    """Computes columns."""
    return {"size": len(record), "first": record[:1].decode("latin-1")}
