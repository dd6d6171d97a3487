"""Load after load, up to what a server can bear."""
