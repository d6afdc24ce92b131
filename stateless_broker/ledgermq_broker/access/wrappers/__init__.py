"""The broker's API as one caller has it: wrapped in access rules, and in quotas."""
