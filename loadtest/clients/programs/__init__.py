"""One program for each client, run with its interpreter: it says what it saw as JSON lines (`saying`)."""
