"""What the settings of a topic accept."""
