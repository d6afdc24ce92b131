"""The rooms of a participant: one for each thing that a bundle does, over what one term has staged and completes."""
