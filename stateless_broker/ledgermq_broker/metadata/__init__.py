"""The cluster's catalog: changed by the controller, followed by every broker."""
