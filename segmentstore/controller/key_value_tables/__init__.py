"""Key-value tables: named sets of table segments with keys of one length."""
