"""A classifier of handwritten digits, trained with Flower and securemedian."""
