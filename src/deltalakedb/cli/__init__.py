"""The command ``deltasql``: parse, call, show."""
