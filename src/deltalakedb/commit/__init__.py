"""The one commit path: everything that changes a table ends here."""
