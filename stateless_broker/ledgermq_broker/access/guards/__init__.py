"""What a caller must be allowed to do, method by method: from the .proto (`declared`), or by code (`own`)."""
