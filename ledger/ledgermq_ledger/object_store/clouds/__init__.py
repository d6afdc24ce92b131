"""Objects in Azure Blob Storage, behind the same store as S3."""
