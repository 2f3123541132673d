"""Users and their credentials, as the controller decides them."""
