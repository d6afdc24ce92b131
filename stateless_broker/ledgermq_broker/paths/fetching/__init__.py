"""The path of records to readers: fetch, long polls and streams, and how streams give way to producers."""
