"""What each optimization brought, one line above the other."""
