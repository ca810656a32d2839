"""Log lines on requests, and the file they go to."""
