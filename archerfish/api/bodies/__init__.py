"""What clients may send, field by field. A field that is not here is refused by name."""
