"""Each operation against the roofline of the machine."""
