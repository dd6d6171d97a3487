"""Load tests over HTTP: of our server, or any other that speaks the same API."""
