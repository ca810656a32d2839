"""What is special about S3, Google's storage, the Hub and Azure."""
