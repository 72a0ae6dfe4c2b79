"""Communication backends that torch does not bring itself; each is built on first use."""
