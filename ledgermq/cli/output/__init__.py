"""What commands print, and the code with which they end."""
