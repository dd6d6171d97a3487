"""The engine alone, without HTTP."""
