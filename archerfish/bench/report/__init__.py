"""What a load test comes to, as a page to look at, and what limits the server, in words."""
