"""Record indices become checked record bytes."""
