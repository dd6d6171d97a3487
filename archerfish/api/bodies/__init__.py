"""The bodies that clients may send, field by field. An unknown field is refused by name."""
