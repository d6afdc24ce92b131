"""One partition that a member holds: its phases, what is handed out and what is finished."""
