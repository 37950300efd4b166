"""What the tests of every room share: database servers, addresses and the golden tables."""
