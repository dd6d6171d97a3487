"""Load over HTTP: against our server or any that speaks the same API."""
