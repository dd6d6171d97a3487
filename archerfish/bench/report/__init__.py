"""Shows a load test as a page, and names the bottleneck of the server in words."""
